"""Commit-aware enqueue: jobs made in a transaction are sent when it commits, and never if it is rolled back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from django.db import DEFAULT_DB_ALIAS, connections, transaction

from relevo.django.settings import checked_alias
from relevo.engine.handle import Job
from relevo.errors import StoreError

if TYPE_CHECKING:
    from relevo.django.site_task import SiteTask

Then = Callable[[Sequence[Job[Any]]], None]
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


class Held:
    """Jobs that wait for a commit; called by Django when it has happened."""

    def __init__(
        self, task: SiteTask[..., Any], jobs: Sequence[Job[Any]], fragments: list[bytes], then: Then | None = None
    ) -> None:
        self._task = task
        self._then = then
        self._jobs = jobs
        self._fragments = fragments

    def __call__(self) -> None:
        engine, ids = self._task.engine, [job.id for job in self._jobs]
        try:
            owners = engine.run(self._task._store_many(ids, self._fragments))
        except StoreError as error:
            error.add_note(f"the transaction is committed; not sent: {self._task.target} {', '.join(ids[:20])}")
            raise
        for job, owner in zip(self._jobs, owners, strict=True):
            job.id, job.created = owner, owner == job.id
        if self._then is not None:
            self._then(self._jobs)


def hold(
    connection: Any,
    task: SiteTask[..., Any],
    jobs: Sequence[Job[Any]],
    fragments: list[bytes],
    then: Then | None = None,
) -> None:
    """Send these jobs when the transaction of the connection commits, and then call `then` with them."""
    transaction.on_commit(Held(task, jobs, fragments, then), using=connection.alias)
