"""Asks the provider, over its socket. That it cannot be asked is one thing, what it says is another."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import Any

log = logging.getLogger("vmpooler.provider")

#: Seconds for any answer.
PATIENCE = 5.0


class ProviderError(Exception):
    """The provider could not do it. It may the next time."""


class TemplateNotFound(ProviderError):
    """There is no such template, and trying again does not make one."""


class ProviderDown(Exception):
    """Nobody answers. That says nothing about any machine."""


class Provider:
    """A provider behind a socket."""

    def __init__(self, socket: str) -> None:
        self._socket = socket
        #: Since when it does not answer, for this process; None: it does.
        self._away_since: float | None = None

    async def ask(self, do: str, **given: object) -> Any:
        """Have it do something, on a connection of its own."""
        try:
            async with asyncio.timeout(PATIENCE):
                answer = json.loads(await self._say(json.dumps({"do": do, **given}).encode() + b"\n"))
        except (OSError, EOFError, ValueError, TimeoutError) as error:
            self._away_since = self._away_since or time.monotonic()
            raise ProviderDown("the provider does not answer") from error
        if self._away_since is not None:
            log.info("the provider answers again, after %.1f s", time.monotonic() - self._away_since)
            self._away_since = None
        if "error" in answer:
            kind = TemplateNotFound if answer["error"] == "template_not_found" else ProviderError
            raise kind(answer["message"])
        return answer["ok"]

    async def _say(self, line: bytes) -> bytes:
        reader, writer = await asyncio.open_unix_connection(self._socket)
        try:
            writer.write(line)
            return await reader.readuntil(b"\n")
        finally:
            writer.close()
