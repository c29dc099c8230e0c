"""A route: one thing that can be asked, with all that is known of it in one value.

A handler is an async function, and its signature is the contract: arguments that the path names, `query` and `body` as
structs, and what it gives. The table made of routes answers requests, and the OpenAPI document is read from it.

    @get("/queues/{queue}")
    async def show(desk: Desk, queue: str) -> QueueStats:
        '''How a queue stands.'''
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from msgspec import Struct

from relevo.app import Relevo
from relevo.audit import Doing
from relevo.model.access import Caller, Role
from relevo.web.problems import RETRY_AFTER, Refused

T = TypeVar("T")
Handler = Callable[..., Awaitable[Any]]


class Errands:
    """What goes on after a request was answered. It ends with the process, so it must be such that others can go on."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def go(self, doing: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin something."""
        task = asyncio.create_task(doing)
        self._tasks.add(task)  # else nobody would hold it, and it could vanish half-way
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever began it has told of it


class Waits:
    """Requests that wait for the end of a job: no more than so many, for each holds a connection."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """A request waits; `Refused` with 503 if too many do."""
        if self._count >= self._most:
            message = f"{self._count} requests wait for jobs here already: ask again, or without `wait`"
            raise Refused(503, "TooManyWaits", message, {"Retry-After": RETRY_AFTER})
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1


class Desk(Struct, frozen=True):
    """What a handler works with: the app, and who asks."""

    app: Relevo
    caller: Caller
    #: What a handler whose deed has many steps tells how far it is.
    doing: Doing
    #: Where the API is mounted.
    base: str
    #: Where a handler leaves what goes on after its answer.
    errands: Errands
    waits: Waits

    @property
    def sees_all(self) -> bool:
        """Whether tracebacks and logs are for the one who asks."""
        return self.caller.role >= Role.OPERATOR


class Did(Struct, Generic[T], frozen=True):
    """What a request that changes something gives: the answer, and what the audit trail is told."""

    answer: T
    #: How many things were changed.
    count: int = 1
    about: dict[str, Any] = {}
    #: It only told what it would do: nothing is written down.
    dry: bool = False
    #: It goes on after the answer, and is written down by what goes on when that ends.
    goes_on: bool = False
    #: What the audit trail calls it, where that depends on what was asked; '': as its route says.
    deed: str = ""


class Created(Struct, Generic[T], frozen=True):
    """What a request gives that makes something: the answer, and where that can be looked at."""

    answer: T
    #: '': nowhere.
    location: str = ""
    #: False: there was one already that it may be taken for.
    is_new: bool = True


class Lines(Struct, frozen=True):
    """Lines of JSON that are neither read nor made all at once: a body, or an answer that the audit trail is told of
    when its last line has left.
    """

    lines: AsyncIterator[bytes]
    about: dict[str, Any] = {}


class Page(Struct, Generic[T], frozen=True):
    """A part of a list."""

    items: list[T]
    #: The offset of the next part; None: this was the last.
    next: int | None

    @classmethod
    def of(cls, items: list[T], offset: int, limit: int) -> Page[T]:
        """A page that was asked for so."""
        return cls(items, offset + limit if len(items) == limit else None)


class Route(Struct, frozen=True):
    """One thing that can be asked."""

    method: str
    #: Below the API, with names in braces.
    path: str
    role: Role
    handler: Handler
    #: What the audit trail calls it, unless its `Did` says otherwise; '': it changes nothing.
    deed: str
    query: type[Struct] | None
    #: A struct, or `Lines`.
    body: type[Struct] | None
    answers: Any
    #: Whether its answer is that of `Created`.
    creates: bool
    headers: type[Struct] | None
    #: Open to producers, whatever the role; they see only what is theirs.
    producers: bool
    #: The first sentence of the handler, and all it says.
    summary: str
    about: str

    @property
    def names(self) -> list[str]:
        """What the path names."""
        return re.findall("{([a-z]+)}", self.path)

    @property
    def id(self) -> str:
        """As clients made from the document call it: `queues_pause`."""
        return f"{self.handler.__module__.rpartition('.')[2]}_{self.handler.__name__}"

    @property
    def changes(self) -> bool:
        """Whether it may change something."""
        return self.method != "GET"


def get(path: str, role: Role = Role.VIEWER, *, producers: bool = False) -> Callable[[Handler], Route]:
    """Make a route of a handler that only looks."""
    return lambda handler: _route("GET", path, role, handler, "", producers)


def post(path: str, deed: str, role: Role = Role.OPERATOR) -> Callable[[Handler], Route]:
    """Make a route of a handler that changes something, and gives `Did` (or `Lines`, which are taken out);
    `deed` is what the audit trail calls it.
    """
    return lambda handler: _route("POST", path, role, handler, deed, False)


def create(path: str) -> Callable[[Handler], Route]:
    """Make a route of a handler that does what producers are there for, and gives `Created`.

    It is no deed of an operator: thousands of them would leave no room in the audit trail.
    """
    return lambda handler: _route("POST", path, Role.ADMIN, handler, "", True)


def _route(method: str, path: str, role: Role, handler: Handler, deed: str, producers: bool) -> Route:
    hints = get_type_hints(handler)
    answers = hints["return"]
    creates = get_origin(answers) is Created
    if creates or (deed and answers is not Lines):
        assert creates or get_origin(answers) is Did, f"{handler.__name__}: what changes something gives Did[…]"
        (answers,) = get_args(answers)
    about = inspect.cleandoc(handler.__doc__ or "")
    return Route(
        method,
        path,
        role,
        handler,
        deed,
        hints.get("query"),
        hints.get("body"),
        answers,
        creates,
        hints.get("headers"),
        producers,
        summary=about.partition("\n")[0].partition(". ")[0].rstrip(".:"),
        about=about,
    )
