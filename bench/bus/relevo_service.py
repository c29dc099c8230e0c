"""The responder of relevo: the service `echo`, served by `relevo worker bench.bus.relevo_service:app`."""

from __future__ import annotations

import asyncio

from bench.adapters.contract import URL
from relevo import Relevo

app = Relevo("echo", url=URL, env="bench")
echo = app.service("echo")


@echo.action("say")
async def say(text: str) -> dict[str, str]:
    """The same text back."""
    return {"text": text}


@echo.action("say_late")
async def say_late(text: str, after: float) -> dict[str, str]:
    """The same, but not at once."""
    await asyncio.sleep(after)
    return {"text": text}
