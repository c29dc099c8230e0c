"""Many tasks with requests, callbacks and events at once: each ends as expected, and they leave nothing behind."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from relevo import Relevo
from relevo.bus.conversations import Tally
from relevo.bus.subscription_store import Subscription, subscriptions
from relevo.engine.message import Reply
from relevo.errors import RemoteError
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, aeventually
from tests.leaks import lasting
from tests.servers import Server
from tests.working import working

WARM_UP, TASKS = 100, 4_000 if os.environ.get("RELEVO_CHAOS") else 500
#: Tasks under way at once.
TOGETHER = 100
#: A task whose number is a multiple of this fails.
FAILS = 50
#: Bytes by which the memory of the server may grow: its own tables, and buffers of connections.
SPARE = 1_000_000

#: Parts of the names of keys of tasks and messages. All other keys are those of queues and workers.
PASSING = (":made:", ":ended:", ":notes:", ":carried:")
#: Workers write these keys every few seconds: one for the bus, and one for each queue.
WRITTEN_LATER = (":spans", ":timings")


class Load:
    """Ingestion requests from embedding, is called back and publishes an event for two services."""

    def __init__(self, make: AppFactory) -> None:
        self.seen: Counter[str] = Counter()
        settings = {"trace_max": 500}  # as the warm-up makes
        names = ("gateway", "documents", "vectors", "readers")
        self.apps = [make(name, **settings) for name in names]
        self.gateway, documents, vectors, readers = self.apps
        ingestion, embedding = documents.service("ingestion"), vectors.service("embedding")

        @ingestion.action("ingest", retries=0)
        async def ingest(n: int) -> None:
            assert await ingestion.arequest("embedding.size", {"n": n}, timeout=PATIENCE) == n
            self.seen["asked"] += 1
            await ingestion.asend("embedding.generate", {"n": n}, on_reply="ready", on_progress="half", timeout="1h")

        @ingestion.action("ready")
        async def ready(reply: Reply[list[int]]) -> None:
            self.seen[reply.status] += 1
            await ingestion.apublish("processed", {"ok": reply.ok})

        @ingestion.action("half")
        async def half(reply: Reply[int]) -> None:
            self.seen["half"] += 1

        @embedding.action("size")
        async def size(n: int) -> int:
            return n

        @embedding.action("generate", retries=0, result_ttl=600)
        async def generate(n: int) -> list[int]:
            await embedding.areport(n)
            if n % FAILS == 0:
                raise ValueError(n)
            return [n] * 10

        for name in ("mail", "audit"):

            @readers.service(name).on("ingestion.processed")
            async def heard(ok: bool, name: str = name) -> None:
                self.seen[name] += 1

    async def run(self, first: int, count: int) -> None:
        """Run `count` tasks, and wait until every message that they caused has ended."""
        self.seen.clear()
        me = self.gateway.service("gateway")
        for start in range(first, first + count, TOGETHER):
            some = range(start, start + TOGETHER)
            await asyncio.gather(
                *(
                    me.asend("ingestion.ingest", {"n": n}, conversation=f"task_{n}", tenant=f"tenant_{n % 7}")
                    for n in some
                )
            )
            await aeventually(lambda: self.seen["audit"] >= start + TOGETHER - first - 500)
        await aeventually(lambda: self.seen["mail"] >= count and self.seen["audit"] >= count, what="all tasks ended")
        await aeventually(self._is_quiet, what="nothing lives")

    async def clean_up(self, first: int, count: int) -> int:
        """Remove dead letters and messages that ended after the last callback; returns their number."""
        removed = 0
        for start in range(first, first + count, TOGETHER):
            some = [self.gateway.conversations.aclean(f"task_{n}", dead=True) for n in range(start, start + TOGETHER)]
            reports = await asyncio.gather(*some)
            assert not any(one.living or one.dead for one in reports)
            removed += sum(one.removed for one in reports)
        return removed

    async def _is_quiet(self) -> bool:
        found = await self.counted()
        return not any(one.living for one in found.values())

    async def counted(self) -> dict[str, Tally]:
        return await self.gateway.conversations.acounts()

    async def is_served(self) -> bool:
        known: list[Subscription] = await self.gateway.engine.arun(subscriptions(self.gateway.engine.bus_keys))
        return len(known) == 2


def keys_of(server: Server, app: Relevo) -> set[str]:
    return set(lasting(key.decode() for key in server.command("KEYS", f"*{app.settings.prefix}*")))


@pytest.mark.slow
async def test_many_tasks_leave_no_keys_and_no_memory_behind(bus_factory: AppFactory, server: Server) -> None:
    load = Load(bus_factory)
    async with AsyncExitStack() as stack:
        for app in load.apps[1:]:
            await stack.enter_async_context(working(app))
        await aeventually(load.is_served)
        await load.run(1, WARM_UP)

        async def is_as_before() -> bool:
            found = await asyncio.to_thread(keys_of, server, load.gateway)
            return {key for key in found if not key.endswith(WRITTEN_LATER)} <= before

        before = {key for key in keys_of(server, load.gateway) if not any(part in key for part in PASSING)}
        await load.clean_up(1, WARM_UP)
        await aeventually(is_as_before, what="nothing of the warm-up is left")
        memory, start = server.command("INFO", "memory")["used_memory"], await load.counted()

        await load.run(10_001, TASKS)
        failed = TASKS // FAILS
        assert load.seen == {
            "asked": TASKS,
            "done": TASKS - failed,
            "failed": failed,
            "half": TASKS,
            "mail": TASKS,
            "audit": TASKS,
        }
        removed = await load.clean_up(10_001, TASKS)
        await aeventually(is_as_before, what="all keys of the tasks are gone")
        used = server.command("INFO", "memory")["used_memory"] - memory
        assert used < SPARE, f"{used:,} bytes more than before"

        end = await load.counted()
        created = {kind: end[kind].created - start[kind].created for kind in end}
        # Three actions, a report and a reply for each, and an event for two.
        assert created == {"actions": 3 * TASKS, "callbacks": 2 * TASKS, "notifications": 2 * TASKS}
        for one in end.values():
            assert one.created == one.done + one.dead + one.expired
            assert one.living == 0
        cleaned = sum(end[kind].cleaned - start[kind].cleaned for kind in end)
        assert cleaned == sum(created.values()), "every message left its task's list once"
        assert removed < cleaned / 2, "most by the callbacks themselves"


async def test_many_requests_that_fail_leave_nothing_behind(bus_factory: AppFactory, server: Server) -> None:
    bus = bus_factory(trace_max=0)
    svc = bus.service("svc")

    @svc.action("work")
    async def work(n: int) -> int:
        if n % 2:
            raise ValueError(n)
        return n

    async with working(bus):
        await svc.arequest("svc.work", {"n": 0}, wait=True)
        listed = f"{{{bus.settings.prefix}:{bus.settings.env}:{bus.name}}}:workers"
        await aeventually(lambda: listed in keys_of(server, bus), what="the worker is listed")
        before = await asyncio.to_thread(keys_of, server, bus)
        answers = await asyncio.gather(
            *(svc.arequest("svc.work", {"n": n}) for n in range(200)), return_exceptions=True
        )
        assert [one for one in answers if not isinstance(one, RemoteError)] == list(range(0, 200, 2))
        assert await asyncio.to_thread(keys_of, server, bus) <= before
