"""Delays the answers to wrong tokens, longer with each one from the same address. Valid tokens never wait.

Memory is bounded: at most so many addresses (the longest inactive are dropped) and so many delayed answers. Beyond
that a wrong token is answered with 429 at once, and its connection is closed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections import OrderedDict

from msgspec import Struct

from relevo.web.problems import Refused

log = logging.getLogger("relevo.web")

#: Seconds: of the second wrong token; each further one takes twice as long, up to the longest.
FIRST, LONGEST = 0.1, 3.0
#: Seconds without another wrong token after which one is no longer counted.
FORGIVEN_AFTER = 10.0
#: Addresses that are remembered.
ADDRESSES = 1024
#: Answers that are delayed at the same time: a fraction of the requests that can be in work.
DELAYED = 16
_LOGGED = (1, 10, 100, 1_000, 10_000)


class _Count(Struct):
    count: float
    at: float


class BadTokens:
    """Counts wrong tokens by address."""

    def __init__(self) -> None:
        self._counts: OrderedDict[str, _Count] = OrderedDict()
        self._delayed = 0

    async def delay(self, address: str) -> None:
        """Count a wrong token, and return when it may be answered; `Refused` with 429 if too many wait already."""
        seconds = self.seconds(address, time.monotonic())
        if self._delayed >= DELAYED:
            headers = {"Retry-After": str(round(LONGEST)), "Connection": "close"}
            raise Refused(429, "TooManyRequests", "too many wrong tokens: check which one is sent", headers)
        self._delayed += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self._delayed -= 1

    def seconds(self, address: str, now: float) -> float:
        """Count a wrong token of this address; the delay of its answer."""
        network = _network(address)
        known = self._counts.setdefault(network, _Count(0.0, now))
        before = max(0.0, known.count - (now - known.at) / FORGIVEN_AFTER)
        known.count, known.at = before + 1, now
        self._counts.move_to_end(network)
        if len(self._counts) > ADDRESSES:
            self._counts.popitem(last=False)
        if any(before < mark <= known.count for mark in _LOGGED):
            log.warning("wrong token from %s, %d recently", network or "the unix socket", known.count)
        return 0.0 if known.count < 2 else min(LONGEST, FIRST * 2 ** min(known.count - 2, 10))


def _network(address: str) -> str:
    """An address as it is counted: for IPv6 its network, because one host can use many addresses of it."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((found, 64), strict=False)) if found.version == 6 else address
