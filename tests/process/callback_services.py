"""Two services that processes of these tests serve: `embedding` works, `ingestion` sends to it and is called back.

As in `jobs`, every run is a line in the file of effects.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from functools import partial
from typing import Any

from relevo import Relevo, current_job
from relevo.bus.callbacks import sending
from relevo.engine.message import Reply
from tests.process.dying import carry_out, fork_each
from tests.process.jobs import APP, CLOCK, effect, ran_before


def crunch(n: int, dies: bool = False) -> int:
    """Compute in a process of its own, and die in it the first time."""
    again = ran_before(n)
    effect("start", n)
    message = current_job().message
    assert message is not None and (message.source, message.tenant) == ("ingestion", "acme")
    assert embedding.service("embedding").report(n) is True
    if dies and not again:
        os.kill(os.getpid(), signal.SIGKILL)
    embedding.service("embedding").send("embedding.generate", {"n": n + 100})
    effect("end", n)
    return n


def serve_embedding(made: Relevo) -> None:
    service = made.service("embedding")
    service.action("crunch", executor="process")(crunch)

    @service.action("generate", retries=0)
    async def generate(n: int, seconds: float = 0.0, reports: int = 0, fails: bool = False, text: str = "") -> int:
        effect("start", n)
        for report in range(reports):
            await service.areport(report)
        await asyncio.sleep(seconds)
        effect("end", n)
        if fails:
            raise ConnectionError("no model")
        return n


def serve_ingestion(made: Relevo) -> None:
    service = made.service("ingestion")

    @service.action("ready")
    async def ready(reply: Reply[Any]) -> None:
        effect("called", reply.context)
        effect(reply.status, reply.context)

    @service.action("gave_up")
    async def gave_up(reply: Reply[Any]) -> None:
        effect("called", reply.context)
        effect(f"late-{reply.status}", reply.context)

    @service.action("half")
    async def half(reply: Reply[Any]) -> None:
        effect("half", reply.context)

    @service.action("begin")
    async def begin(n: int) -> None:
        """Send from the worker that is to be called back."""
        effect("begin", n)
        await service.asend("embedding.generate", {"n": n}, on_reply="ready", context=n, sticky=True)


def build(name: str, *services: str, **settings: Any) -> Relevo:
    """An app with these services, or with both."""
    made = Relevo(name, **settings)
    if "embedding" in services or not services:
        serve_embedding(made)
    if "ingestion" in services or not services:
        serve_ingestion(made)
    return made


_NAME, _CLOCK = os.environ.get(APP, "callback-tests"), os.environ.get(CLOCK, "")
embedding, ingestion = (build(_NAME, service, _clock_key=_CLOCK) for service in ("embedding", "ingestion"))


def die_sending(first: int, last: int) -> None:
    """Send messages with callbacks, each from a process of its own that dies after so many calls as its number."""

    def send(n: int) -> None:
        data = {"n": n, "text": "x" * 100_000}  # so large that it travels beside the message
        message, wanted = ingestion.service("ingestion")._message(
            "embedding.generate", data, {}, on_reply="ready", on_timeout="gave_up", timeout="1h", context=n
        )
        carry_out(ingestion, sending(ingestion.engine, message, wanted), n)

    fork_each(partial(send, n) for n in range(first, last + 1))


def send_for_ever() -> None:
    """Send one message after the other, and print the number of each that the server acknowledged."""
    service = ingestion.service("ingestion")
    for n in itertools.count(1):
        service.send("embedding.generate", {"n": n}, on_reply="ready", on_timeout="gave_up", timeout="1h", context=n)
        print(n, flush=True)
