"""What users write: a class with a method around each enqueue, and one around each attempt."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from relevo.errors import ConfigurationError, TargetError

if TYPE_CHECKING:
    from relevo.engine.context import JobContext
    from relevo.engine.task import Task

What = Literal["enqueue", "attempt"]


class Call(Struct, eq=False, kw_only=True):
    """A call of a task or an action, on its way to the server or about to run. Its fields may be changed."""

    #: The name of the task, or the type of the message or event.
    target: str
    queue: str
    #: The arguments; of a message, its data: by name, or one structure.
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    #: What travels with the job, besides its arguments: texts by their names. Around an attempt: what came with it.
    headers: dict[str, str]
    #: None: a message, whose handler is code of another service.
    task: Task[..., Any] | None = None
    #: Around an attempt: the job that runs; else None.
    job: JobContext | None = None


class Middleware:
    """Code around each enqueue and each attempt: what stands before a method's `yield` runs first, the rest afterwards.

    >>> class Locale(Middleware):
    ...     def enqueue(self, call: Call) -> Iterator[None]:
    ...         call.headers["locale"] = locale.get()
    ...         yield
    ...     def attempt(self, call: Call) -> Iterator[None]:
    ...         with using(call.headers.get("locale", "en")):
    ...             yield

    `yield` gives what came of it (`job = yield`): the job, or the result of the attempt. An error is raised there, and
    goes on after the method, which may raise another one. One that raises before its `yield` refuses the call.

    The method with an `a` in front is used instead where code may await: in `aenqueue` and its like, and around async
    tasks.
    """

    def enqueue(self, call: Call) -> Iterator[None]:  # noqa: ARG002
        """Around making a job, sending a message, publishing an event; around each of many."""
        yield

    async def aenqueue(self, call: Call) -> AsyncIterator[None]:  # noqa: ARG002
        """`enqueue` for async code."""
        yield

    def attempt(self, call: Call) -> Iterator[None]:  # noqa: ARG002
        """Around each attempt, where the task runs: on the event loop, in a thread, in a child process."""
        yield

    async def aattempt(self, call: Call) -> AsyncIterator[None]:  # noqa: ARG002
        """`attempt` for async tasks."""
        yield


Part = Callable[[Call], Any]


def check(given: object) -> Middleware:
    """Refuse what cannot be middleware."""
    if isinstance(given, type) and issubclass(given, Middleware):
        return check(given())
    if not isinstance(given, Middleware):
        raise TargetError(f"a relevo.middleware.Middleware is needed, found {given!r:.80}")
    for name in ("enqueue", "attempt"):
        _check_method(given, name, inspect.isasyncgenfunction, "plain")
        _check_method(given, "a" + name, inspect.isgeneratorfunction, "async")
    return given


def _check_method(given: Middleware, name: str, is_other: Callable[[Any], bool], kind: str) -> None:
    method = inspect.unwrap(getattr(given, name))
    if is_other(method) or inspect.iscoroutinefunction(method):
        raise TargetError(f"{type(given).__name__}.{name} must be {kind}, with one `yield` where the call is made")


def parts(middleware: Sequence[Middleware], what: What, *, may_await: bool, where: str) -> list[Part]:
    """The methods to call, the outermost first; ConfigurationError: one awaits where code cannot."""
    found: list[Part] = []
    for one in middleware:
        if may_await and _has(one, "a" + what):
            found.append(getattr(one, "a" + what))
        elif _has(one, what):
            found.append(getattr(one, what))
        elif _has(one, "a" + what):
            name = type(one).__name__
            raise ConfigurationError(f"{name}.a{what} awaits, which {where} cannot: give {name} a plain {what}, too")
    return found


def _has(one: Middleware, name: str) -> bool:
    return getattr(type(one), name) is not getattr(Middleware, name)
