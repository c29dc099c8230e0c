"""Tasks of a Django project: enqueued in a transaction, they are sent when it commits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from relevo.codec import Signature
from relevo.django.commit import Call, OnCommit, Then, checked, hold, hold_plan, ignore, transaction_of
from relevo.django.connections import around, original
from relevo.engine.handle import Job
from relevo.engine.options import Options
from relevo.engine.task import Task
from relevo.store.plan import Plan

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

P = ParamSpec("P")
R = TypeVar("R")


class SiteTask(Task[P, R]):
    """A task of the project's app.

    >>> order.save(); charge.enqueue(order.pk)                      # in atomic(): sent on commit   # doctest: +SKIP
    >>> charge.using(on_commit=False).enqueue(order.pk)             # at once                       # doctest: +SKIP
    >>> charge.using(on_commit="archive").enqueue(order.pk)         # with that database            # doctest: +SKIP
    """

    #: None: as `RELEVO["on_commit"]`.
    on_commit: OnCommit = None
    #: The task of `django.tasks` that it runs; None: it is one of our own.
    of_django: Any = None

    def __init__(
        self,
        engine: Engine,
        func: Callable[P, Any],
        target: str,
        options: Options,
        *,
        signature: Signature | None = None,
        own: Options | None = None,
    ) -> None:
        super().__init__(engine, around(func), target, options, signature=signature, own=own)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        return original(self.func)(*args, **kwargs)

    def using(self, *, on_commit: OnCommit = None, **options: Any) -> SiteTask[P, R]:
        """The same task with other options for the jobs made from it.

        `on_commit`: True, False, or the alias of the database whose transaction is waited for.
        """
        new = super().using(**options)
        assert isinstance(new, SiteTask)
        new.on_commit = self.on_commit if on_commit is None else checked(on_commit)
        return new

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Put a job on the queue, when the open transaction commits if there is one. Its id is known at once."""
        connection = transaction_of(self.on_commit)
        if connection is None:
            return super().enqueue(*args, **kwargs)
        return self.held(connection, [(args, kwargs)])[0]

    def enqueue_many(self, calls: Iterable[tuple[tuple[Any, ...], dict[str, Any]]]) -> list[Job[R]]:
        """Put many jobs on the queue, when the open transaction commits if there is one."""
        connection = transaction_of(self.on_commit)
        return super().enqueue_many(calls) if connection is None else self.held(connection, calls)

    delay = enqueue

    @property
    def is_postponed(self) -> bool:
        """Whether a job that is enqueued now is sent when a transaction commits."""
        return transaction_of(self.on_commit) is not None

    def postpones(self, plan: Plan[Any]) -> bool:
        """Whether a workflow that begins with this task waits for the open transaction."""
        connection = transaction_of(self.on_commit)
        if connection is not None:
            hold_plan(connection, self.engine, plan)
        return connection is not None

    def held(self, connection: Any, calls: Iterable[Any], then: Then = ignore) -> list[Job[R]]:
        """Jobs that are put on the queue when the transaction of the connection commits; then `then` is called."""
        if self.engine.middleware:
            return self._through(calls, lambda fragments: self._hold(connection, fragments, then))
        return self._hold(connection, self._encoded(calls), then)  # refused here, where the mistake is

    def _hold(self, connection: Any, fragments: list[bytes], then: Then) -> list[Job[R]]:
        ids = self.engine.new_id.many(len(fragments))
        jobs = self._jobs(ids, ids)
        hold(connection, [Call(self, job, fragment, then) for job, fragment in zip(jobs, fragments, strict=True)])
        return jobs
