"""Commit-aware enqueue: jobs made in a transaction are sent when it commits, and never if it is rolled back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import DEFAULT_DB_ALIAS, connections, transaction

from relevo.django.settings import checked_alias
from relevo.engine.handle import Job
from relevo.errors import StoreError
from relevo.store.plan import Plan

if TYPE_CHECKING:
    from relevo.django.site_task import SiteTask
    from relevo.engine.engine import Engine

Then = Callable[[Job[Any]], None]

#: True: with the transaction of the default database; or of the one of that alias; False: at once.
OnCommit = bool | str | None


def checked(on_commit: OnCommit) -> OnCommit:
    """The option `on_commit`, refused if it is none."""
    return on_commit if on_commit is None or isinstance(on_commit, bool) else checked_alias("on_commit", on_commit)


def transaction_of(on_commit: OnCommit) -> Any:
    """The connection whose open transaction a job is to wait for; None: it is sent at once."""
    if on_commit is None:
        from relevo.django.site_app import app

        on_commit = app.site.on_commit
    if on_commit is False:
        return None
    connection = connections[DEFAULT_DB_ALIAS if on_commit is True else on_commit]
    return connection if connection.in_atomic_block else None


class Call(NamedTuple):
    """A job that waits for a commit."""

    task: SiteTask[..., Any]
    job: Job[Any]
    fragment: bytes
    then: Then


class AfterCommit:
    """What waits for a commit; called by Django when it has happened."""

    def __call__(self) -> None:
        """Send it."""
        raise NotImplementedError


class HeldPlan(AfterCommit):
    """A workflow that waits for a commit."""

    def __init__(self, engine: Engine, plan: Plan[Any]) -> None:
        self._engine = engine
        self._plan = plan

    def __call__(self) -> None:
        try:
            self._engine.run(self._plan)
        except StoreError as error:
            error.add_note("the transaction is committed; a workflow of it was not sent")
            raise


class Held(AfterCommit):
    """Jobs that wait for the same commit."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.calls: list[Call] = []

    def hold(self, calls: Sequence[Call]) -> None:
        """Take in jobs that were enqueued in the open transaction."""
        self.calls += calls

    def __call__(self) -> None:
        while self.calls:
            task = self.calls[0].task
            some = [*takewhile(partial(_is_of, task), self.calls)]
            try:
                plan = task._store_many([call.job.id for call in some], [call.fragment for call in some])
                owners = task.engine.run(plan)
            except StoreError as error:
                ids = ", ".join(call.job.id for call in self.calls[:20])
                error.add_note(f"the transaction is committed; {len(self.calls)} jobs of it were not sent: {ids}")
                raise
            del self.calls[: len(some)]
            for call, owner in zip(some, owners, strict=True):
                is_sent(call, owner)


def _is_of(task: SiteTask[..., Any], call: Call) -> bool:
    return call.task is task


def is_sent(call: Call, owner: str) -> None:
    """The server has this job, or another one of its name."""
    call.job.id, call.job.created = owner, owner == call.job.id
    call.then(call.job)


def hold(connection: Any, calls: Sequence[Call]) -> None:
    """Send these jobs when the transaction of the connection commits."""
    kind = _kind()
    last = connection.run_on_commit[-1] if connection.run_on_commit else None
    # One that shares all savepoints with these jobs shares their fate.
    if last is not None and type(last[1]) is kind and last[0] == set(connection.savepoint_ids):
        last[1].hold(calls)
    else:
        held = kind(connection.alias)
        held.hold(calls)
        transaction.on_commit(held, using=connection.alias)


def hold_plan(connection: Any, engine: Engine, plan: Plan[Any]) -> None:
    """Carry out this plan when the transaction of the connection commits."""
    transaction.on_commit(HeldPlan(engine, plan), using=connection.alias)


def _kind() -> type[Held]:
    from relevo.django.site_app import app

    if not app.site.outbox:
        return Held
    from relevo.django.outbox.held import HeldInOutbox  # its table is there only if it is installed

    return HeldInOutbox


def ignore(_: Job[Any]) -> None:
    """A `then` that does nothing."""
