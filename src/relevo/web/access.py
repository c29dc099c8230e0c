"""Authorization over HTTP: roles, their tokens, and which requests come from this machine.

Pure decisions about the contents of a request; `web/gate.py` applies them.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Sequence
from enum import IntEnum
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from relevo.errors import OptionError

#: Characters of a secret. Sixteen at random cannot be guessed over a network.
SHORTEST_SECRET = 16
_FORM = "each token is role:name:secret"
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
#: A valid credential after `Authorization: Bearer`, RFC 6750.
_SECRET = re.compile(r"[A-Za-z0-9._~+/-]+=*")
#: A `Host` header: a name or an address, with an optional port.
_HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?")
_PORTS = {"http": 80, "https": 443}


class Role(IntEnum):
    """The rights of a caller. Viewer, operator, admin: each includes those before it."""

    #: Enqueue, and read the jobs it enqueued; nothing else. A separate role: viewers and operators may not enqueue.
    PRODUCER = 0
    #: Read, except logs and tracebacks, which may contain values.
    VIEWER = 1
    #: Pause, resume, retry, cancel, run: what can be undone.
    OPERATOR = 2
    #: Clear, discard, purge, remove: what cannot be undone.
    ADMIN = 3

    @property
    def label(self) -> str:
        """The name of the role in settings and messages."""
        return self.name.lower()


class Token(Struct, frozen=True):
    """A token of the API. Its repr hides the secret."""

    role: Role
    name: str
    secret: str
    #: Of a producer: patterns of the names of tasks it may enqueue; none: all.
    tasks: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"{self.role.label}:{self.name}:***"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """The repr used by rich, also in tracebacks."""
        return [("role", self.role.label), ("name", self.name)]


class Caller(Struct, frozen=True):
    """The sender of a request that was admitted."""

    name: str
    role: Role
    tasks: tuple[str, ...] = ()

    def may_enqueue(self, task: str) -> bool:
        """Whether its token names this task, or names none."""
        return not self.tasks or any(fnmatchcase(task, pattern) for pattern in self.tasks)


def token_of(text: Any) -> Token:
    """Read a token of the settings. An invalid one raises `OptionError`, whose message never contains the secret.

    >>> token_of("operator:ana:correct-horse-battery")
    operator:ana:***
    >>> token_of("producer shop.mails.* shop.report:web:correct-horse-battery").tasks
    ('shop.mails.*', 'shop.report')
    """
    scope, colon, rest = text.partition(":") if isinstance(text, str) else ("", "", "")
    name, second, secret = rest.partition(":")
    if not (colon and second):
        raise OptionError(f"{_FORM}, such as operator:ana:SECRET.")
    role, *tasks = scope.split() or [""]
    if role not in (known := [one.label for one in Role]):
        raise OptionError(f"{_FORM}, and a role is one of {', '.join(known)}.")
    if tasks and role != Role.PRODUCER.label:
        raise OptionError(f"{_FORM}, and only a producer's role is followed by the tasks it may enqueue.")
    if not _NAME.fullmatch(name):
        raise OptionError(f"{_FORM}, and a name has letters, digits and . _ @ - only, 64 at most.")
    if len(secret) < SHORTEST_SECRET or not _SECRET.fullmatch(secret):
        raise OptionError(
            f"{_FORM}, and a secret has {SHORTEST_SECRET} characters or more, letters, digits and . _ ~ + / - only. "
            "One is made by: openssl rand -hex 24"
        )
    return Token(Role[role.upper()], name, secret, tuple(tasks))


def caller_of(authorization: str, tokens: Sequence[Token]) -> Caller | None:
    """The caller that sent `Authorization: Bearer …`; None: the token is unknown."""
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() != "bearer":
        return None
    found = None
    ours = _digest(given.strip())
    for token in tokens:  # compare with all, each in constant time: the duration must not show how close a guess was
        if hmac.compare_digest(ours, _digest(token.secret)):
            found = Caller(token.name, token.role, token.tasks)
    return found


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).digest()


def is_loopback(host: str) -> bool:
    """Whether a name or an address is a loopback one: localhost, 127.0.0.0/8, ::1."""
    if host.lower().removesuffix(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(re.sub(r"^\[(.*)\]$", r"\1", host)).is_loopback
    except ValueError:
        return False


def host_of(header: str) -> str:
    """The name in a `Host` header, without the port; '' if it is missing or invalid."""
    found = _HOST.fullmatch(header)
    return found[1].strip("[]").lower() if found else ""


def is_same_origin(origin: str, host: str) -> bool:
    """Whether a page of this origin was served by the host that the `Host` header names.

    The scheme is not compared: it differs behind a proxy that terminates TLS.

    >>> is_same_origin("https://ops.example.com", "ops.example.com"), is_same_origin("null", "localhost:8420")
    (True, False)
    """
    try:
        page = urlsplit(origin)
        usual = _PORTS.get(page.scheme)
        if usual is None or not page.hostname:
            return False
        here = urlsplit(f"//{host}")
        return (page.hostname, page.port or usual) == (here.hostname, here.port or usual)
    except ValueError:
        return False
