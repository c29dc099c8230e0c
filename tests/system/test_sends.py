from __future__ import annotations
import asyncio
from relevo import Relevo, current_job
from relevo.model.message import Reply
from tests.working import drain, working
from tests.eventually import aeventually

async def test_basic(bus: Relevo) -> None:
    emb = bus.service("embedding"); ing = bus.service("ingestion")
    got = []
    @emb.action("generate")
    async def generate(n: int) -> list[int]:
        await emb.areport({"half": n})
        return [n]
    @ing.action("ready")
    async def ready(reply: Reply[list[int]]) -> None:
        got.append((reply, current_job().message))
    @ing.action("prog")
    async def prog(reply: Reply[dict[str,int]]) -> None:
        got.append((reply, None))
    await ing.asend("embedding.generate", {"n": 3}, on_reply="ready", on_progress="prog", context={"doc": 1})
    await drain(bus)
    for g in got: print(g)
    assert len(got) == 2
