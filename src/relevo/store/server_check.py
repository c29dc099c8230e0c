"""Checks that a server is fit to keep jobs, once per connection before the first call that stores or hands out any."""

from __future__ import annotations

import logging

from relevo.errors import StoreError, UnfitServer
from relevo.store.endpoint import Endpoint

log = logging.getLogger("relevo")

ASK = ("INFO", "memory")
_POLICY = b"maxmemory_policy:"


class ServerCheck:
    """Warns of an eviction policy that deletes jobs, or refuses that server.

    `mode`: "warn" (one WARNING per server), "strict" (`UnfitServer`), or "off".
    """

    def __init__(self, mode: str = "warn") -> None:
        self.is_off = mode == "off"
        self._is_strict = mode == "strict"
        self._warned: set[Endpoint] = set()

    def judge(self, endpoint: Endpoint, reply: bytes | StoreError) -> None:
        """Judge the reply to `ASK`. An error means that we may not run it, which is no reason to refuse the server."""
        if isinstance(reply, StoreError):
            if self._is_strict:
                self._warn(endpoint, f"the eviction policy of {endpoint} could not be checked: {reply}")
            return
        policy = next((line[len(_POLICY) :].strip() for line in reply.splitlines() if line.startswith(_POLICY)), b"")
        if policy in (b"noeviction", b""):
            return
        from relevo.store.server_facts import Facts
        from relevo.store.server_verdicts import eviction  # here, as few programs need it

        verdict = eviction(Facts(info={"maxmemory_policy": policy.decode(errors="replace")}))
        text = f"the server {endpoint}: {verdict.found}; {verdict.what_to_do}"
        if self._is_strict:
            raise UnfitServer(f'{text}. Or set server_check="warn" to use this server nevertheless.')
        self._warn(endpoint, text)

    def _warn(self, endpoint: Endpoint, text: str) -> None:
        if endpoint not in self._warned:
            self._warned.add(endpoint)
            log.warning("%s", text)
