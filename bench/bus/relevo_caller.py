"""relevo's way of asking: `arequest` on an event loop, `request` from threads."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from bench.adapters.contract import CONCURRENCY, URL
from bench.bus.caller import Answer, Caller
from relevo import Relevo
from relevo.errors import BusError, NoResponders, RequestTimeout

#: Seconds between two looks for a responder that is starting.
LOOK = 0.02

app = Relevo("client", url=URL, env="bench")
me = app.service("client")


class _Relevo(Caller):
    distribution = "relevo"
    reliability = "lease per request; a responder that dies is replaced within the caller's time limit"
    recovers = True

    def worker(self) -> list[str]:
        command = [sys.executable, "-m", "relevo.cli.main", "worker", "bench.bus.relevo_service:app"]
        return [*command, "-c", str(CONCURRENCY), "--log-level", "WARNING"]


class Async(_Relevo):
    """`await me.arequest(…)`."""

    settings = "arequest; relevo worker -c 100, uvloop, an async handler"

    async def close(self) -> None:
        await app.aclose()

    async def ready(self, seconds: float) -> Answer:
        until = time.monotonic() + seconds
        while True:
            try:
                await me.arequest("echo.say", {"text": "ready"}, timeout=seconds)
                return {}
            except NoResponders as error:
                _still(until, error)
                await asyncio.sleep(LOOK)

    async def ask(self, text: str, timeout: float) -> Any:
        try:
            return await me.arequest("echo.say", {"text": text}, timeout=timeout)
        except RequestTimeout:
            return None

    async def ask_late(self, text: str, timeout: float, after: float) -> Any:
        try:
            return await me.arequest("echo.say_late", {"text": text, "after": after}, timeout=timeout)
        except RequestTimeout:
            return None


class Blocking(_Relevo):
    """`me.request(…)` from threads."""

    is_async = False
    settings = "request, from threads; relevo worker -c 100, uvloop, an async handler"

    def close(self) -> None:
        app.close()

    def ready(self, seconds: float) -> Answer:
        until = time.monotonic() + seconds
        while True:
            try:
                me.request("echo.say", {"text": "ready"}, timeout=seconds)
                return {}
            except NoResponders as error:
                _still(until, error)
                time.sleep(LOOK)

    def ask(self, text: str, timeout: float) -> Any:
        try:
            return me.request("echo.say", {"text": text}, timeout=timeout)
        except RequestTimeout:
            return None


def _still(until: float, error: BusError) -> None:
    if time.monotonic() > until:
        raise error
