"""Steps, chains and groups: which calls to make, and in which order.

Type checkers know what each of them takes from the previous one, and what it gives: `Step[int, str]`. A call that takes
nothing (`.si`) fits after everything and is a `Step[object, str]`; one that has all its arguments fits after nothing
and is a `Step[Never, str]`.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain as joined
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Literal, Never, ParamSpec, Protocol, TypeVar, overload

from msgspec import Struct
from msgspec.structs import replace

from relevo.engine.handle import Job
from relevo.errors import OptionError, TargetError
from relevo.middleware.headers import headed
from relevo.store.plan import Steps
from relevo.text.durations import Duration

if TYPE_CHECKING:
    from relevo.engine.engine import Engine
    from relevo.engine.task import Task
    from relevo.workflows.storing import Rows
    from relevo.workflows.workflow import Workflow

#: A larger flow cannot be inspected as one thing; let jobs enqueue its parts.
MAX_JOBS = 100_000

#: Nesting of chains and groups, far beyond what is ever written; the shape is nested twice as deeply in JSON.
MAX_LEVELS = 90

CallbackKind = Literal["on_success", "on_complete", "on_failure"]

A = TypeVar("A")
R = TypeVar("R")
P = ParamSpec("P")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")
Takes = TypeVar("Takes", contravariant=True)
Gives = TypeVar("Gives", covariant=True)


class Flow(Struct, Generic[Takes, Gives], frozen=True, repr_omit_defaults=True):
    """What steps, chains and groups have in common."""

    def __or__(self, after: Flow[Gives, R]) -> Chain[Takes, R]:
        return Chain((*_parts(self), *_parts(after)))

    def __ror__(self, before: Never) -> Never:
        raise _refusal(before)

    def then(self, after: Flow[Gives, R]) -> Chain[Takes, R]:
        """This, then `after`, with the result of this as its first argument. The same as `|`."""
        return self | after

    def on_success(self, step: Step[Any, Any]) -> Flow[Takes, Gives]:
        """A copy that makes this call once when everything in it is done."""
        return self._calling("on_success", step)

    def on_failure(self, step: Step[Any, Any]) -> Flow[Takes, Gives]:
        """A copy that makes this call once when something in it has failed for good."""
        return self._calling("on_failure", step)

    def on_complete(self, step: Step[Any, Any]) -> Flow[Takes, Gives]:
        """A copy that makes this call once when it has ended, in any way."""
        return self._calling("on_complete", step)

    def _calling(self, kind: CallbackKind, step: Step[Any, Any]) -> Flow[Takes, Gives]:
        if not isinstance(step, Step):
            found = "a whole flow" if isinstance(step, Flow) else f"{step!r:.80}"
            raise OptionError(f"{kind}: one complete call such as notify.si(7) is needed, found {found}")
        whole = self if isinstance(self, Chain | Group) else Chain((self,))
        before = dict(whole.callbacks).get(kind)
        if before is not None:
            raise OptionError(f"{kind} is {before!r:.80} already: there is one; write a task that does both")
        return replace(whole, callbacks=(*whole.callbacks, (kind, step)))

    def enqueue(self, *, name: str = "", unique: bool | Duration | None = None) -> Workflow[Gives]:
        """Enqueue the whole flow. When this returns, the server has all of it; if it raises, nothing of it will run.

        `name`: while a workflow of that name has not ended, or (`unique="1d"`) for so long from its enqueue, this gives
        that one back: enqueueing again after a crash makes no second one. Names belong to the queue of the first step.
        """
        engine = self.engine
        if engine is not None and engine.middleware:
            from relevo.workflows.enqueuing import through_flow  # which is about what is written here

            return through_flow(engine, self, lambda flow: flow._enqueue(name, unique))
        return self._enqueue(name, unique)

    def _enqueue(self, name: str, unique: bool | Duration | None) -> Workflow[Gives]:
        rows, plan = self._storing(name, unique)
        with rows.making():
            if rows.steps and rows.steps[0].task.postpones(plan):
                return rows.workflow
            return rows.engine.run(plan)

    async def aenqueue(self, *, name: str = "", unique: bool | Duration | None = None) -> Workflow[Gives]:
        """`enqueue` for async code."""
        engine = self.engine
        if engine is not None and engine.middleware:
            from relevo.workflows.enqueuing import athrough_flow

            return await athrough_flow(engine, self, lambda flow: flow._aenqueue(name, unique))
        return await self._aenqueue(name, unique)

    async def _aenqueue(self, name: str, unique: bool | Duration | None) -> Workflow[Gives]:
        rows, plan = self._storing(name, unique)
        with rows.making():
            return await rows.engine.arun(plan)

    def _storing(self, name: str, unique: bool | Duration | None) -> tuple[Rows, Steps[Workflow[Gives]]]:
        from relevo.workflows.storing import Name, Rows, stored  # which compile what is written here

        engine = self.engine
        if engine is None:
            raise OptionError("this flow has no step at all, so there is nothing to enqueue and no app to do it")
        rows = Rows(engine, self, Name.of(name, unique))
        return rows, stored(rows)

    @property
    def engine(self) -> Engine | None:
        """The engine of its tasks' app; None if there is no step."""
        waiting: list[Flow[Any, Any]] = [self]
        while waiting:
            match waiting.pop():
                case Step(task=task):
                    return task.engine
                case Chain(parts=parts, callbacks=callbacks) | Group(members=parts, callbacks=callbacks):
                    waiting.extend(step for _, step in callbacks)
                    waiting.extend(reversed(parts))
        return None


class Step(Flow[Takes, Gives], frozen=True, repr_omit_defaults=True):
    """A call of a task that is to be made. Written `add.s(2)` or `add.si(1, 2)`."""

    task: Task[..., Gives]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    #: Whether it receives the result of the previous part, if there is one.
    takes_result: bool = True
    #: What middleware added.
    headers: dict[str, str] = {}

    def encoded(self, limit: int) -> bytes:
        """Its arguments, which must be complete, and its headers."""
        fragment = self.task.signature.encode(self.args, self.kwargs, limit=limit)
        return headed(fragment, self.headers, what=self.task.target) if self.headers else fragment

    def __repr__(self) -> str:
        given = joined(map(repr, self.args), (f"{name}={value!r}" for name, value in self.kwargs.items()))
        return f"{self.task.target}.{'s' if self.takes_result else 'si'}({', '.join(given)})"


class Chain(Flow[Takes, Gives], frozen=True, repr_omit_defaults=True):
    """One after the other; gives the result of the last one. Made by `chain(…)` and `|`."""

    parts: tuple[Flow[Any, Any], ...]
    callbacks: tuple[tuple[CallbackKind, Step[Any, Any]], ...] = ()


class Group(Flow[Takes, Gives], frozen=True, repr_omit_defaults=True):
    """All at once; gives the list of their results, in order. Made by `group(…)`."""

    members: tuple[Flow[Any, Any], ...]
    callbacks: tuple[tuple[CallbackKind, Step[Any, Any]], ...] = ()
    #: So many of its members may fail.
    tolerate: int = 0
    #: When more have failed, the others are cancelled.
    fail_fast: bool = False


@overload
def chain(a: Flow[A, T1], /) -> Chain[A, T1]: ...
@overload
def chain(a: Flow[A, T1], b: Flow[T1, T2], /) -> Chain[A, T2]: ...
@overload
def chain(a: Flow[A, T1], b: Flow[T1, T2], c: Flow[T2, T3], /) -> Chain[A, T3]: ...
@overload
def chain(a: Flow[A, T1], b: Flow[T1, T2], c: Flow[T2, T3], d: Flow[T3, T4], /) -> Chain[A, T4]: ...
@overload
def chain(a: Flow[A, T1], b: Flow[T1, T2], c: Flow[T2, T3], d: Flow[T3, T4], e: Flow[T4, R], /) -> Chain[A, R]: ...
@overload
def chain(
    a: Flow[A, T1], b: Flow[T1, T2], c: Flow[T2, T3], d: Flow[T3, T4], e: Flow[T4, R], f: Flow[R, Any], /,
    *more: Flow[Any, Any],
) -> Chain[A, Any]: ...  # fmt: skip


def chain(*flows: Flow[Any, Any]) -> Chain[Any, Any]:
    """Run these one after the other, each with the result of the previous one as its first argument.

    >>> chain(fetch.s(url), parse.s(), save.s("pages"))      # doctest: +SKIP
    >>> fetch.s(url) | parse.s() | save.s("pages")           # the same     # doctest: +SKIP
    """
    if not flows:
        raise OptionError("a chain needs at least one step: chain(fetch.s(url), parse.s())")
    return Chain(tuple(joined.from_iterable(map(_parts, flows))))


@overload
def group() -> Group[object, list[Any]]: ...
@overload
def group(members: Iterable[Flow[A, R]], /, *, tolerate: float = 0, fail_fast: bool = False) -> Group[A, list[R]]: ...
@overload
def group(
    a: Flow[A, T1], b: Flow[A, T2], /, *, tolerate: float = 0, fail_fast: bool = False
) -> Group[A, list[T1 | T2]]: ...
@overload
def group(
    a: Flow[A, T1], b: Flow[A, T2], c: Flow[A, T3], /, *, tolerate: float = 0, fail_fast: bool = False
) -> Group[A, list[T1 | T2 | T3]]: ...
@overload
def group(*members: Flow[A, R], tolerate: float = 0, fail_fast: bool = False) -> Group[A, list[R]]: ...


def group(*members: Any, tolerate: float = 0, fail_fast: bool = False) -> Group[Any, Any]:
    """Run these all at once. The result is the list of their results, in order.

    `tolerate`: so many members may fail, or this share of them (0.05), and the group still counts as done; its result
    is the list without theirs. `fail_fast`: when more have failed, those that have not ended are cancelled.

    >>> group(parse.s(page) for page in pages)                      # doctest: +SKIP
    >>> group(parse.s(page) for page in pages).then(total.s())      # total gets the list     # doctest: +SKIP
    """
    given: Iterable[Any] = members
    if len(members) == 1 and isinstance(members[0], Iterable):
        given = members[0]
    found = tuple(map(_part, islice(given, MAX_JOBS + 1)))
    if len(found) > MAX_JOBS:
        raise OptionError(f"a flow has at most {MAX_JOBS:,} jobs, and this group alone has more: enqueue several")
    return Group(found, tolerate=_tolerated(tolerate, len(found)), fail_fast=bool(fail_fast))


def _tolerated(given: Any, members: int) -> int:
    """How many members may fail."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not given >= 0:
        raise OptionError(f"tolerate: a number of members, or a share from 0.0 to 1.0, is needed, found {given!r:.40}")
    if isinstance(given, int):
        return min(given, members)
    if given > 1:
        raise OptionError(
            f"tolerate: a share is at most 1.0, found {given!r:.40}; a number of members is whole: {given:.0f}"
        )
    return int(given * members)


def _parts(thing: object) -> tuple[Flow[Any, Any], ...]:
    """The parts that this adds to a chain; a chain within a chain is flattened."""
    part = _part(thing)
    return part.parts if isinstance(part, Chain) else (part,)


def _part(thing: object) -> Flow[Any, Any]:
    if isinstance(thing, Step):
        return thing
    if not isinstance(thing, Chain | Group):
        raise _refusal(thing)
    if thing.callbacks:
        kind, step = thing.callbacks[0]
        raise OptionError(f"a part of a flow has no callbacks of its own: put .{kind}({step!r:.80}) on the whole flow")
    return thing


def _refusal(thing: object) -> TargetError:
    target = getattr(thing, "target", None)
    if isinstance(target, str) and hasattr(thing, "signature"):
        return TargetError(f"{target} is a task and not a call of it: write {target.rpartition('.')[2]}.s(…)")
    if isinstance(thing, Job):
        return TargetError(
            f"job {thing.id} is enqueued already, so it cannot be a step of a flow: write task.s(…) instead of "
            "task.enqueue(…)"
        )
    if isinstance(thing, Iterable) and not isinstance(thing, str):
        return TargetError(
            f"steps are given one by one: write chain(*steps), or group(steps) for all at once; found {thing!r:.80}"
        )
    if callable(thing):
        name = getattr(thing, "__name__", repr(thing))
        return TargetError(f"{name:.80} is a function and not a step: decorate it with @app.task and write {name}.s(…)")
    return TargetError(f"a flow is made of steps such as add.s(2), found {thing!r:.80}")


class Receiver(Protocol[Takes, P, R]):
    """A task as type checkers see it in `Task.s`: its first parameter, the others, its result.

    A `Concatenate` on the task itself would mean the same, but mypy does not infer the first parameter's type there.
    """

    def __call__(self, first: Takes, /, *args: P.args, **kwargs: P.kwargs) -> Any: ...
    def enqueue_many(self, calls: Iterable[tuple[tuple[Any, ...], dict[str, Any]]]) -> list[Job[R]]: ...
