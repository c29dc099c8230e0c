from __future__ import annotations
from relevo import Relevo, current_job
from relevo.model.message import Reply
from tests.working import drain, working

async def test_basic(bus_factory) -> None:
    bus = bus_factory(signing_keys=["k1:0123456789abcdef"])
    emb = bus.service("embedding"); ing = bus.service("ingestion")
    got = []
    @emb.action("generate")
    async def generate(n: int) -> list[int]:
        got.append(n)
        return [n]
    await ing.asend("embedding.generate", {"n": 3})
    await drain(bus)
    print(bus.dead.list())
    assert len(got) == 1
