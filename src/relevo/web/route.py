"""A route: one kind of request, with everything known about it in one value.

A handler is an async function, and its signature is the contract: arguments from the path, `query` and `body` as
structs, and the answer. Requests are routed by the table of routes, and the OpenAPI document is made from it.

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
from relevo.audit.trail import Doing
from relevo.web.access import Caller, Role
from relevo.web.problems import RETRY_AFTER, Refused

T = TypeVar("T")
Handler = Callable[..., Awaitable[Any]]


class Errands:
    """Tasks that continue after their request was answered. They end with the process, so others must be able to resume
    them.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def go(self, doing: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start one."""
        task = asyncio.create_task(doing)
        self._tasks.add(task)  # else nothing refers to it, and it could be garbage-collected half-way
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its starter has reported it


class Waits:
    """Limits the requests that wait for the end of a job: each holds a connection."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Count a waiting request; `Refused` with 503 if there are too many."""
        if self._count >= self._most:
            message = f"{self._count} requests wait for jobs here already: ask again, or without `wait`"
            raise Refused(503, "TooManyWaits", message, {"Retry-After": RETRY_AFTER})
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1


class Desk(Struct, frozen=True, kw_only=True):
    """What a handler works with: the app, the caller, and so on."""

    app: Relevo
    caller: Caller
    #: Where a handler of many steps reports its progress.
    doing: Doing
    #: Where the API is mounted.
    base: str
    #: Runs what continues after the answer.
    errands: Errands
    waits: Waits

    @property
    def sees_all(self) -> bool:
        """Whether the caller may see tracebacks and logs."""
        return self.caller.role >= Role.OPERATOR


class Did(Struct, Generic[T], frozen=True, kw_only=True):
    """The result of a request that changes something: the answer, and the details for the audit trail."""

    answer: T
    #: How many things were changed.
    count: int = 1
    about: dict[str, Any] = {}
    #: A dry run: no audit entry is written.
    dry: bool = False
    #: The work continues after the answer, and writes its own audit entry when it ends.
    goes_on: bool = False
    #: The action in the audit trail, where that depends on the request; '': that of the route.
    deed: str = ""


class Created(Struct, Generic[T], frozen=True):
    """The result of a request that creates something: the answer, and where it can be read later."""

    answer: T
    #: '': nowhere.
    location: str = ""
    #: False: there was one already that it may be taken for.
    is_new: bool = True


class Lines(Struct, frozen=True):
    """Lines of JSON that are read and made one by one: a body, or an answer; the audit entry of an answer is written
    when its last line was sent.
    """

    lines: AsyncIterator[bytes]
    about: dict[str, Any] = {}


class Page(Struct, Generic[T], frozen=True):
    """A page of a list."""

    items: list[T]
    #: The offset of the next page; None: this was the last.
    next: int | None

    @classmethod
    def of(cls, items: list[T], offset: int, limit: int) -> Page[T]:
        """The page for this offset and limit."""
        return cls(items, offset + limit if len(items) == limit else None)

    @classmethod
    def whole(cls, items: list[T]) -> Page[T]:
        """A list that has one page."""
        return cls(items, None)


class Route(Struct, frozen=True, kw_only=True):
    """One kind of request."""

    method: str
    #: Below the API, with names in braces.
    path: str
    role: Role
    handler: Handler
    #: The action in the audit trail, unless `Did` has one; '': the route changes nothing.
    deed: str
    query: type[Struct] | None
    #: A struct, or `Lines`.
    body: type[Struct] | None
    answers: Any
    #: Whether the answer is a `Created`.
    creates: bool
    headers: type[Struct] | None
    #: Open to producers, whatever the role; they see only their own objects.
    producers: bool
    #: The first sentence of the handler's docstring, and all of it.
    summary: str
    about: str

    @property
    def names(self) -> list[str]:
        """Names of the path's arguments."""
        return re.findall("{([a-z]+)}", self.path)

    @property
    def id(self) -> str:
        """The operation id, for generated clients: the path's fixed parts and the handler, as in `queues_pause`."""
        words = [part.partition(".")[0] for part in self.path.split("/") if part and not part.startswith("{")]
        return "_".join(words if words[-1] == self.handler.__name__ else [*words, self.handler.__name__])

    @property
    def changes(self) -> bool:
        """Whether a request may change something."""
        return self.method != "GET"


def get(path: str, role: Role = Role.VIEWER, *, producers: bool = False) -> Callable[[Handler], Route]:
    """Make a route of a handler that only reads."""
    return lambda handler: _route("GET", path, role, handler, "", producers)


def post(path: str, deed: str, role: Role = Role.OPERATOR) -> Callable[[Handler], Route]:
    """Make a route of a handler that changes something and returns `Did` (or that exports `Lines`);
    `deed` is its action in the audit trail.
    """
    return lambda handler: _route("POST", path, role, handler, deed, False)


def create(path: str) -> Callable[[Handler], Route]:
    """Make a route of a handler for producers, which returns `Created`.

    It is not in the audit trail: thousands of such requests would leave no room there.
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
        method=method,
        path=path,
        role=role,
        handler=handler,
        deed=deed,
        query=hints.get("query"),
        body=hints.get("body"),
        answers=answers,
        creates=creates,
        headers=hints.get("headers"),
        producers=producers,
        summary=about.partition("\n")[0].partition(". ")[0].rstrip(".:"),
        about=about,
    )
