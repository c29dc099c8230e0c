"""The plain way: a request goes to the list of a service, and its answer comes on a list made for that request.

The client pushes a `DomainAction` as JSON to `…:echo:actions` and blocks on `…:client:responses:{action}:{uuid}`, which
the responder pushes to. Every call that waits keeps a connection. Plain redis-py with hiredis, a pool that is large
enough, and nothing clever: this is what a good engineer writes in an afternoon.
"""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

from redis.asyncio import ConnectionPool, Redis

from bench.adapters.contract import URL
from bench.bus.caller import Answer, Caller

#: All keys begin so.
PREFIX = "lists:bench"
ACTIONS = f"{PREFIX}:echo:actions"
#: More than anybody asks for: a pool that is exhausted would be a fault of the benchmark.
CONNECTIONS = 3000


def connected() -> Redis:
    """A client whose blocking reads are not cut short by a time limit of the socket."""
    return Redis(connection_pool=ConnectionPool.from_url(URL, max_connections=CONNECTIONS, socket_timeout=None))


def domain_action(name: str, data: dict[str, Any], response_list: str, correlation_id: str) -> bytes:
    """A request as it travels."""
    action = {
        "action_id": str(uuid.uuid4()),
        "action_type": f"echo.{name}",
        "correlation_id": correlation_id,
        "task_id": correlation_id,
        "tenant_id": "tenant_a",
        "tenant_tier": "professional",
        "session_id": "session_1",
        "origin_service": "client",
        "timestamp": time.time(),
        "callback_queue_name": response_list,
        "data": data,
    }
    return json.dumps(action).encode()


class ListPerAnswer(Caller):
    """RPUSH, then BLPOP with the caller's time limit."""

    distribution = "redis"
    settings = (
        "redis-py with hiredis, a connection for each call that waits; responder: BLPOP, 100 tasks at once, RPUSH"
    )
    reliability = "an action is gone once it is taken: a responder that dies loses it"
    cleans_up = False

    def worker(self) -> list[str]:
        return [*super().worker()[:-1], "bench.bus.list_responder"]

    async def open(self) -> None:
        self._redis = connected()

    async def close(self) -> None:
        await self._redis.aclose()

    async def ready(self, seconds: float) -> Answer:
        # One long wait instead of many short ones, whose answers would stay as keys.
        if await self.ask("ready", seconds) is None:
            raise RuntimeError(f"the responder did not answer within {seconds:g} s")
        return {}

    async def ask(self, text: str, timeout: float) -> Any:
        return await self._request("say", {"text": text}, timeout)

    async def ask_late(self, text: str, timeout: float, after: float) -> Any:
        return await self._request("say_late", {"text": text, "after": after}, timeout)

    async def _request(self, name: str, data: dict[str, Any], timeout: float) -> Any:
        correlation_id = str(uuid.uuid4())
        response_list = f"{PREFIX}:client:responses:{name}:{correlation_id}"
        await self._redis.rpush(ACTIONS, domain_action(name, data, response_list, correlation_id))
        found = await self._redis.blpop([response_list], timeout=timeout)
        return None if found is None else json.loads(found[1])["result"]
