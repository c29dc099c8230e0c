"""Authentication and authorization of requests.

A request needs a token; on a unix socket without tokens, the user of this process needs none. A token that was made at
the start is valid on this machine only: its request must come from a loopback address, name a loopback host, and not
pass a proxy.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence

from starlette.requests import HTTPConnection

from relevo.app import Relevo
from relevo.audit.trail import whoami
from relevo.errors import ConfigurationError
from relevo.web.access import Caller, Role, Token, caller_of, host_of, is_loopback, is_same_origin, token_of
from relevo.web.bad_tokens import BadTokens
from relevo.web.problems import Refused

#: Key in the state of a request on a unix socket: the uid of the peer.
PEER_UID = "relevo.peer_uid"
_HOW = "set RELEVO_WEB_TOKENS=admin:NAME:SECRET and send it as `Authorization: Bearer SECRET`"
#: Headers that proxies set, besides x-forwarded-*: the request comes from another machine.
_FORWARDED = frozenset({"forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip"})


class Gate:
    """Admits requests by their tokens, and delays answers to wrong ones.

    `is_local`: the tokens are for this machine only. `owner`: the caller on a unix socket, if it is the user that this
    process runs as.
    """

    def __init__(self, tokens: Sequence[Token], *, is_local: bool = False, owner: Caller | None = None) -> None:
        self._tokens = tuple(tokens)
        self._is_local = is_local or owner is not None
        self._owner = owner
        self._bad_tokens = BadTokens()

    async def admit(
        self,
        asked: HTTPConnection,
        role: Role,
        *,
        changes: bool = False,
        producers: bool = False,
        authorization: str | None = None,
    ) -> Caller:
        """The caller, if its role suffices; otherwise `Refused` with 401 or 403. `producers`: producers may, too."""
        given = asked.headers.get("authorization", "") if authorization is None else authorization
        caller = self._peer(asked) or await self._bearer(given, _address(asked))
        if self._is_local:
            self._check_machine(asked)
        origin = asked.headers.get("origin")
        if changes and origin is not None and not is_same_origin(origin, asked.headers.get("host", "")):
            raise _forbidden(
                f"a page of {origin!r:.80} may change nothing here: send the request without an Origin header, "
                "or from a page of this server",
                caller.name,
            )
        if not (producers and caller.role is Role.PRODUCER) and caller.role < role:
            needed = f"{role.label} or producer" if producers and role is Role.ADMIN else role.label
            raise _forbidden(
                f"{caller.name} has the role {caller.role.label}; this needs {needed}: use a token of that role",
                caller.name,
            )
        return caller

    def _peer(self, asked: HTTPConnection) -> Caller | None:
        return self._owner if asked.scope.get("state", {}).get(PEER_UID) == os.geteuid() else None

    async def _bearer(self, given: str, address: str) -> Caller:
        caller = caller_of(given, self._tokens)
        if caller is not None:
            return caller
        if not self._tokens:
            raise _unauthorized(f"only the user that this process runs as is answered without a token: {_HOW}")
        if given:
            await self._bad_tokens.delay(address)
        what = "this token is not known here" if given else "a token is needed"
        where = "the one printed at the start" if self._is_local else "the secret of one of the setting web_tokens"
        raise _unauthorized(f"{what}: send `Authorization: Bearer SECRET` with {where}")

    def _check_machine(self, asked: HTTPConnection) -> None:
        forwarded = any(name in _FORWARDED or name.startswith("x-forwarded-") for name in asked.headers)
        if forwarded or (self._owner is None and not is_loopback(_address(asked))):
            raise _forbidden(f"without web_tokens only this machine itself is answered: {_HOW}")
        host = host_of(asked.headers.get("host", ""))
        if not is_loopback(host):
            raise _forbidden(
                f"without web_tokens only localhost is answered, and this request is meant for {host!r:.80}: "
                f"use http://localhost, or {_HOW}"
            )


def tokens_of(app: Relevo) -> list[Token]:
    """The tokens of the setting `web_tokens`."""
    return [token_of(text) for text in app.settings.web_tokens]


def mounted_gate(app: Relevo) -> Gate:
    """The gate of an API inside another site, which has no terminal to print a token to."""
    tokens = tokens_of(app)
    if not tokens:
        raise ConfigurationError(
            "the HTTP API inside another site needs tokens: set RELEVO_WEB_TOKENS=admin:NAME:SECRET "
            "(roles: producer, viewer, operator, admin; a secret: openssl rand -hex 24)"
        )
    return Gate(tokens)


def own_gate(app: Relevo, *, is_unix: bool = False) -> tuple[Gate, Token | None]:
    """The gate of `relevo web`, and the token that was made because none is set."""
    tokens = tokens_of(app)
    if tokens:
        return Gate(tokens), None
    if is_unix:
        return Gate((), owner=Caller(whoami(), Role.ADMIN)), None
    made = Token(Role.ADMIN, whoami(), secrets.token_urlsafe(32))
    return Gate([made], is_local=True), made


def _address(asked: HTTPConnection) -> str:
    return asked.client.host if asked.client else ""


def _unauthorized(message: str) -> Refused:
    return Refused(401, "Unauthorized", message, {"WWW-Authenticate": 'Bearer realm="relevo"'})


def _forbidden(message: str, who: str = "") -> Refused:
    return Refused(403, "Forbidden", message, who=who)
