"""The gate: who a request comes from, and whether that one may do what is asked.

With tokens, the bearer of one is believed, and nobody else. Without any, whoever comes from this machine is: the API
can then be reached by every page that a browser here shows, so such a request must name this machine as its host (a
page of a rebound name does not) and, to change anything, come from no other page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from relevo.model.access import LOOPBACK, Caller, Role, Token, caller_of, host_of, is_loopback, is_same_origin
from relevo.web.problems import Refused

_HOW = "set RELEVO_WEB_TOKENS=admin:NAME:SECRET and send it as `Authorization: Bearer SECRET`"
#: Set by proxies: the request comes from elsewhere, whatever its socket says.
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via")


class Gate:
    """Knows the tokens; keeps nothing of those who come."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tuple(tokens)

    def admit(self, headers: Mapping[str, str], client: str, role: Role, *, changes: bool) -> Caller:
        """Who it is, if they may; else `Refused` with 401 or 403."""
        caller = self._bearer(headers) if self._tokens else self._neighbour(headers, client)
        origin = headers.get("origin")
        if changes and origin is not None and not is_same_origin(origin, headers.get("host", "")):
            raise _forbidden(
                f"a page of {origin!r:.80} may change nothing here: send the request without an Origin header, "
                "or from a page of this server"
            )
        if caller.role < role:
            raise _forbidden(
                f"{caller.name} has the role {caller.role.label}; this needs {role.label}: use a token of that role"
            )
        return caller

    def _bearer(self, headers: Mapping[str, str]) -> Caller:
        given = headers.get("authorization", "")
        caller = caller_of(given, self._tokens)
        if caller is None:
            what = "this token is not known here" if given else "a token is needed"
            raise Refused(
                401,
                "Unauthorized",
                f"{what}: send `Authorization: Bearer SECRET` with the secret of one of the setting web_tokens",
                {"WWW-Authenticate": 'Bearer realm="relevo"'},
            )
        return caller

    def _neighbour(self, headers: Mapping[str, str], client: str) -> Caller:
        if not is_loopback(client) or any(name in headers for name in _FORWARDED):
            raise _forbidden(f"without tokens only this machine itself is answered: {_HOW}")
        host = host_of(headers.get("host", ""))
        if not is_loopback(host):
            raise _forbidden(
                f"without tokens only localhost is answered, and this request is meant for {host!r:.80}: "
                f"use http://localhost, or {_HOW}"
            )
        return LOOPBACK


def _forbidden(message: str) -> Refused:
    return Refused(403, "Forbidden", message)
