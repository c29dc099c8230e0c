"""The responder of the plain way: takes actions from its service's list and pushes each answer where it is told."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

from redis.asyncio import Redis

from bench.adapters.contract import CONCURRENCY
from bench.bus.list_per_answer import ACTIONS, connected

#: Seconds of one blocking read, after which the loop looks whether it should end.
READ = 1


async def say(text: str) -> dict[str, str]:
    """The same text back."""
    return {"text": text}


async def say_late(text: str, after: float) -> dict[str, str]:
    """The same, but not at once."""
    await asyncio.sleep(after)
    return {"text": text}


HANDLERS = {"echo.say": say, "echo.say_late": say_late}


class Responder:
    """Takes one action after another and handles as many at once as relevo's worker does."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._room = asyncio.Semaphore(CONCURRENCY)
        self._handled: set[asyncio.Task[None]] = set()
        self.is_stopping = False

    async def run(self) -> None:
        """Serve until stopped, then finish what was begun."""
        while not self.is_stopping:
            found = await self._redis.blpop([ACTIONS], timeout=READ)
            if found is None:
                continue
            await self._room.acquire()
            task = asyncio.create_task(self._handle(json.loads(found[1])))
            self._handled.add(task)
            task.add_done_callback(self._ended)
        await asyncio.gather(*self._handled)

    async def _handle(self, action: dict[str, Any]) -> None:
        handler: Any = HANDLERS[action["action_type"]]
        response = {
            "success": True,
            "correlation_id": action["correlation_id"],
            "action_id": action["action_id"],
            "result": await handler(**action["data"]),
        }
        await self._redis.rpush(action["callback_queue_name"], json.dumps(response).encode())

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._handled.discard(task)
        self._room.release()

    def stop(self) -> None:
        """Take no more actions."""
        self.is_stopping = True


async def serve() -> None:
    """One responder, until it is told to end."""
    redis = connected()
    responder = Responder(redis)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, responder.stop)
    await responder.run()
    await redis.aclose()


if __name__ == "__main__":
    try:  # as relevo's worker and all clients do
        import uvloop
    except ImportError:
        asyncio.run(serve())
    else:
        uvloop.run(serve())
