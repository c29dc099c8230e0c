"""Moves rows of the table into relevo: each exactly once, whatever process is killed at whatever step.

A job's id is made from its row, and the server remembers which of them it has stored until the mark of the row is
committed. So a run that was killed is simply repeated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Any

import msgspec
from django.db import transaction
from django.utils import timezone
from msgspec import Struct

from relevo.compat import failure_handlers
from relevo.compat.current import current
from relevo.django.migration.marks import Place, job_id, place_in, with_mark
from relevo.django.migration.report import MoveReport
from relevo.django.migration.rows import (
    Kind,
    Target,
    UnreadableRow,
    aware,
    function_of,
    kind_of,
    milliseconds_of,
    priority_of,
    target_of,
)
from relevo.django.migration.table import Table
from relevo.django.site_app import SiteApp
from relevo.engine.dependents import follow, needs_of
from relevo.engine.edges import Edge, Report
from relevo.engine.job import State
from relevo.engine.job_store import look
from relevo.engine.outbox import notify_all, vouched
from relevo.engine.push import NewJob, chunks, forget_once, push_rich
from relevo.engine.task import Task
from relevo.errors import RelevoError, StoreError, UnknownSchedule
from relevo.store.plan import Steps
from relevo.worker import kill_points as faults
from relevo.workflows.steps import Step

#: Rows of one transaction.
ROWS = 200
#: How long the server knows a job whose row may still be there: a run that was killed is repeated within a month.
ONCE_MS = 30 * 86_400_000
#: How long the result of a task is kept that other rows wait for.
KEPT = 7 * 86_400.0


class Moving(Struct, kw_only=True):
    """A row on its way."""

    row: Any
    kind: Kind
    place: Place
    queue: str
    job: NewJob | None = None
    parent: Place | None = None


class Mover:
    """Moves all pending rows of a table."""

    def __init__(self, app: SiteApp, table: Table, report: MoveReport, progress: Callable[[int, int], None]) -> None:
        self._app = app
        self._engine = app.engine
        self._table = table
        self._report = report
        self._progress = progress
        self._parents: set[Any] = set()

    def run(self) -> None:
        """Move them, parents before those that wait for them."""
        self._report.moved_before = self._table.moved().count()
        pending = self._table.pending()
        self._parents = {parent for _, parent in pending if parent is not None}
        done = 0
        for keys in _in_order(pending):
            self._chunk(keys)
            done += len(keys)
            self._progress(done, len(pending))

    def _chunk(self, keys: list[Any]) -> None:
        with transaction.atomic(using=self._table.database):
            moving = list(self._read(self._table.locked(keys)))
            if self._report.dry_run:
                self._count(moving)
                return
            _at("rows_locked")
            self._engine.client.run(self._pushing(moving))
            _at("rows_pushed")
            for one in moving:
                one.row.pending = False
                one.row.log = with_mark(one.row.log, one.place.line)
            self._table.save([one.row for one in moving], "pending", "log")
            _at("rows_marked")
        _at("rows_committed")
        self._count(moving)
        self._engine.client.run(self._forgetting(moving))

    def _count(self, moving: Iterable[Moving]) -> None:
        for one in moving:
            self._report.add(one.kind)

    # reading
    def _read(self, rows: list[Any]) -> Iterator[Moving]:
        parents = {one.pk: one for one in self._table.rows.filter(pk__in={row.dependency_id for row in rows})}
        now = timezone.now()
        for row in rows:
            try:
                yield self._moving(row, parents.get(row.dependency_id), now)
            except (UnreadableRow, RelevoError) as error:
                if isinstance(error, StoreError):
                    raise
                self._report.leave(f"row {row.pk}", row.name, str(error))

    def _moving(self, row: Any, parent: Any, now: datetime) -> Moving:
        target = target_of(row.command_json, "command_json")
        if target is None:
            raise UnreadableRow("command_json is empty")
        kind = kind_of(row, now)
        waits_for = self._waits_for(parent)
        if kind == "cron":
            return self._scheduled(row, target, now)
        task = self._task(row, target)
        if row.name:
            task = task.using(name=row.name, on_conflict="add")
        if (at := aware(row.scheduled_time)) is not None:
            task = task.using(eta=at)
        job = self._job(row, task, target, waits=waits_for is not None)
        queue = task.options.queue
        place = Place(job=job.id, queue=queue)
        return Moving(row=row, kind=kind, place=place, queue=queue, job=job, parent=waits_for)

    def _waits_for(self, parent: Any) -> Place | None:
        """Where the task is that this row waits for; None: it need not wait."""
        if parent is None or parent.success:
            return None
        if parent.pending:
            if self._report.dry_run:
                return Place(job="0" * 20, queue="default")
            raise UnreadableRow(f"it waits for row {parent.pk}, which was left where it is")
        place = place_in(parent.log)
        if place is None:
            raise UnreadableRow(f"it waits for row {parent.pk}, which failed")
        if place.schedule:
            raise UnreadableRow(f"it waits for row {parent.pk}, which is repeated and never ends")
        state = self._engine.run(look(self._engine.keys_of(place.queue), place.job)).state
        if state.has_ended and state is not State.DONE:
            raise UnreadableRow(f"it waits for row {parent.pk}, whose job {place.job} is {state.value}")
        if state is State.UNKNOWN:
            raise UnreadableRow(
                f"it waits for row {parent.pk}, whose job {place.job} has ended, and its record with it: "
                "if it went well, set dependency of this row to NULL"
            )
        return place

    def _task(self, row: Any, target: Target) -> Task[..., Any]:
        """The task with those options of the row that a schedule has, too."""
        task = current().task(function_of(self._engine, target))
        options: dict[str, Any] = {"priority": priority_of(row), "retries": max(0, row.retries_left)}
        handler = target_of(getattr(row, "onfail_json", None), "onfail_json")
        if handler is not None:
            options |= failure_handlers.options_for(self._app, function_of(self._engine, handler))
        if row.pk in self._parents:
            options["result_ttl"] = max(task.options.result_ttl, KEPT)
        return task.using(**options)

    def _job(self, row: Any, task: Task[..., Any], target: Target, *, waits: bool = False) -> NewJob:
        id = job_id(self._app.name, self._table.label, row.pk, row.log, milliseconds_of(row.enqueue_time))
        (fragment,) = task._encoded([(target.args, target.kwargs)])
        job = task._new_job(id, fragment, 0, waits=waits)
        return msgspec.structs.replace(job, needs=needs_of(1, task.failure_ms)) if waits else job

    # cron
    def _scheduled(self, row: Any, target: Target, now: datetime) -> Moving:
        task = self._task(row, target)
        call: Step[Any, Any] = Step(task, target.args, target.kwargs, takes_result=False)
        name = self._schedule_name(row, task, target)
        place = Place(schedule=name)
        if not self._report.dry_run and not self._stands(name, task, target):
            self._app.schedule(name, call, cron=row.cron, tz=current().tz)
        at = aware(row.scheduled_time)
        overdue = at is None or at <= now  # its worker would have run it by now
        job = self._job(row, task, target) if overdue else None
        return Moving(row=row, kind="cron", place=place, queue=task.options.queue, job=job)

    def _schedule_name(self, row: Any, task: Task[..., Any], target: Target) -> str:
        """As `Enqueue` names it; with the key of the row where another task has that name."""
        name = re.sub(r"[\s:]+", "-", row.name or target.label)
        return name if self._stands(name, task, target) is not False else f"{name}-{row.pk}"

    def _stands(self, name: str, task: Task[..., Any], target: Target) -> bool | None:
        """Whether the schedule of this name makes this call; None: there is none."""
        try:
            info = self._app.schedules.get(name).info()
        except UnknownSchedule:
            return None
        return info.task == task.target and list(info.args or ()) == list(target.args) and info.kwargs == target.kwargs

    # storing
    def _pushing(self, moving: list[Moving]) -> Steps[None]:
        jobs = sorted((one for one in moving if one.job is not None), key=attrgetter("queue"))
        for queue, some in groupby(jobs, key=attrgetter("queue")):
            yield from self._engine.list_queue(queue)
            given = [one.job for one in some if one.job is not None]
            for part in chunks(len(job.body) for job in given):
                yield push_rich(self._engine.keys_of(queue), given[part], once_ms=ONCE_MS)
        for one in moving:
            if one.parent is not None and one.job is not None:
                yield from self._following(one.job.id, one.queue, one.parent)

    def _following(self, child: str, queue: str, parent: Place) -> Steps[None]:
        """Note with the parent which job waits for it; noted twice, it makes no difference."""
        keys_of, dead_max = self._engine.keys_of, self._engine.settings.dead_max
        state, number = yield follow(keys_of(parent.queue), parent.job, [Edge(child, queue)])
        if state and state != "unknown":
            report = Report(child, parent.job, number, state, "c")
            reports = yield from vouched(keys_of, keys_of(parent.queue), [(queue, report)])
            if (yield from notify_all(keys_of(queue), [one for _, one in reports], dead_max)):
                yield from self._engine.relay(queue)

    def _forgetting(self, moving: list[Moving]) -> Steps[None]:
        jobs = sorted((one for one in moving if one.job is not None), key=attrgetter("queue"))
        for queue, some in groupby(jobs, key=attrgetter("queue")):
            yield forget_once(self._engine.keys_of(queue), [one.job.id for one in some if one.job is not None])


def _in_order(pending: list[tuple[Any, Any]]) -> Iterator[list[Any]]:
    """Keys of rows in parts of one transaction, each behind those that they wait for; at last those in a circle."""
    todo = dict(pending)
    while todo:
        free = [key for key, parent in todo.items() if parent not in todo] or list(todo)
        for start in range(0, len(free), ROWS):
            yield free[start : start + ROWS]
        for key in free:
            del todo[key]


def _at(point: faults.Point) -> None:
    if faults.ACTIVE:
        faults.at(point)
