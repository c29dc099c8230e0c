"""Who may do what over HTTP: roles, the tokens that give them, and which requests come from this machine.

Pure decisions about what a request says of itself; `web/gate.py` asks them.
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
#: What may stand behind `Authorization: Bearer`, RFC 6750.
_SECRET = re.compile(r"[A-Za-z0-9._~+/-]+=*")
#: A `Host` header: a name or an address, perhaps a port, and nothing else that a URL may have.
_HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?")
_PORTS = {"http": 80, "https": 443}


class Role(IntEnum):
    """What a caller may do. Viewer, operator, admin: each may do what those before it may."""

    #: Enqueue, and look at the jobs it enqueued; nothing else. It stands apart: no viewer or operator may enqueue.
    PRODUCER = 0
    #: Look, but neither at logs nor at tracebacks, which tell of values.
    VIEWER = 1
    #: Pause, resume, retry, cancel, run: what can be taken back.
    OPERATOR = 2
    #: Clear, discard, purge, remove: what cannot.
    ADMIN = 3

    @property
    def label(self) -> str:
        """As people write it."""
        return self.name.lower()


class Token(Struct, frozen=True):
    """Something that lets its holder in. Printing it hides the secret."""

    role: Role
    name: str
    secret: str
    #: Of a producer: patterns of the names of tasks it may enqueue; none: all.
    tasks: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"{self.role.label}:{self.name}:***"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """What rich prints, in tracebacks too."""
        return [("role", self.role.label), ("name", self.name)]


class Caller(Struct, frozen=True):
    """The sender of a request that was let in."""

    name: str
    role: Role
    tasks: tuple[str, ...] = ()

    def may_enqueue(self, task: str) -> bool:
        """Whether its token names this task, or names none."""
        return not self.tasks or any(fnmatchcase(task, pattern) for pattern in self.tasks)


def token_of(text: Any) -> Token:
    """A token as it is written in settings; nonsense is refused with `OptionError`, which never holds the secret.

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
    """Who sends `Authorization: Bearer …`; None: the holder of no token."""
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() != "bearer":
        return None
    found = None
    ours = _digest(given.strip())
    for token in tokens:  # all of them, each in the same time: how long it takes must not tell how near a guess was
        if hmac.compare_digest(ours, _digest(token.secret)):
            found = Caller(token.name, token.role, token.tasks)
    return found


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).digest()


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine for itself: localhost, 127.0.0.0/8, ::1."""
    if host.lower().removesuffix(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(re.sub(r"^\[(.*)\]$", r"\1", host)).is_loopback
    except ValueError:
        return False


def host_of(header: str) -> str:
    """The name in a `Host` header, without the port; '': there is none that can be read."""
    found = _HOST.fullmatch(header)
    return found[1].strip("[]").lower() if found else ""


def is_same_origin(origin: str, host: str) -> bool:
    """Whether a page of this origin was given by the server that the `Host` header names.

    Not the scheme: behind a proxy that ends TLS ours is another one.

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
