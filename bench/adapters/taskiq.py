# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, no-any-return"
"""taskiq with taskiq-redis, on a list and on a stream."""

from __future__ import annotations

from typing import Any

from taskiq.serializers import ORJSONSerializer
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend, RedisStreamBroker

from bench.adapters.contract import CONCURRENCY, KEEPS_RESULTS, URL, Adapter, program
from bench.probe import hit

COMMON = (
    "uvloop, ORJSON, --workers 1 --max-async-tasks 100 --max-prefetch 100, socket_timeout=None; "
    "results looked for every 5 ms"
)


async def noop(i: int, s: str) -> int:
    hit(i)
    return i


def _set_up(broker: Any) -> tuple[Any, Any]:
    if KEEPS_RESULTS:
        kept = RedisAsyncResultBackend(URL, result_ex_time=600, serializer=ORJSONSerializer())
        broker = broker.with_result_backend(kept)
    broker = broker.with_serializer(ORJSONSerializer())
    return broker, broker.task(task_name="noop")(noop)


# redis-py 8 ends a read after 5 s by default, which delays a job that comes later.
list_broker, list_noop = _set_up(ListQueueBroker(URL, queue_name="taskiq-list", socket_timeout=None))
stream_broker, stream_noop = _set_up(
    RedisStreamBroker(URL, queue_name="taskiq-stream", consumer_id="0", socket_timeout=None)
)


class _Taskiq(Adapter):
    distribution = "taskiq"
    has_delayed = False  # they need a scheduler process of their own
    broker: Any
    broker_name: str
    noop: Any

    async def open(self) -> None:
        await self.broker.startup()

    async def close(self) -> None:
        await self.broker.shutdown()

    async def enqueue(self, i: int, s: str) -> None:
        await self.noop.kiq(i, s)

    async def call(self, i: int, s: str) -> Any:
        task = await self.noop.kiq(i, s)
        return (await task.wait_result(check_interval=0.005, timeout=15)).return_value

    def worker(self) -> list[str]:
        many = str(CONCURRENCY)
        options = ["--workers", "1", "--max-async-tasks", many, "--max-prefetch", many, "--no-parse"]
        where = f"bench.adapters.taskiq:{self.broker_name}"
        return [program("taskiq"), "worker", where, *options, "--log-level", "WARNING"]


class List(_Taskiq):
    settings = f"ListQueueBroker, {COMMON}"
    reliability = "none: a job is popped before it runs, a dead worker loses it"
    broker, broker_name, noop = list_broker, "list_broker", list_noop


class Stream(_Taskiq):
    settings = f"RedisStreamBroker without maxlen, {COMMON}"
    reliability = "pending list of the stream; jobs are claimed after 10 minutes (default). Entries are never trimmed"
    recovers = True
    cleans_up = False
    inflight = (("XPENDING", "taskiq-stream", "taskiq"),)
    broker, broker_name, noop = stream_broker, "stream_broker", stream_noop
