"""Moves what waits in relevo back into rows of the table: each exactly once, whatever process is killed.

First all rows are written, then the jobs are removed. A row says which job it is, so a run that was killed is repeated.
No worker may run until it is finished.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from django.db import transaction
from django.utils import timezone

from relevo.django.migration.living import (
    PAGE,
    Living,
    NotARow,
    living,
    parents_of,
    target_of_schedule,
    time_of,
)
from relevo.django.migration.marks import Place, back_from, jobs_in, schedules_in, with_mark
from relevo.django.migration.report import MoveReport
from relevo.django.migration.rows import Kind, Target
from relevo.django.migration.table import Table
from relevo.django.site_app import SiteApp
from relevo.engine.job import State
from relevo.engine.job_store import remove
from relevo.schedules.handle import ScheduleInfo
from relevo.worker import kill_points as faults

#: Those that others wait for come before those that wait.
STATES = ("ready", "scheduled", "waiting")
#: Columns that a move back changes in a row that is there.
CHANGED = ("pending", "retries_left", "scheduled_time", "priority", "log")


class BackMover:
    """Moves all waiting jobs and all schedules of the app into the table."""

    def __init__(self, app: SiteApp, table: Table, report: MoveReport, progress: Callable[[int, int], None]) -> None:
        self._app = app
        self._engine = app.engine
        self._table = table
        self._report = report
        self._progress = progress
        #: Key of the row of each job and schedule that has one.
        self._rows: dict[str, Any] = {}
        self._schedules: dict[str, Any] = {}
        self._parents: dict[str, str] = {}
        self._done = 0

    def run(self) -> None:
        """Write the rows, then remove the jobs."""
        self._read_marks()
        jobs = self._jobs()
        self._parents = dict(parents_of(jobs))
        written: list[Living] = []
        for start in range(0, len(jobs), PAGE):
            written += self._write(jobs[start : start + PAGE])
            self._progress(min(start + PAGE, len(jobs)), len(jobs))
        if not self._report.dry_run:
            _at("jobs_written")
            self._remove(written)
        for info in self._app.schedules.list():
            self._schedule(info)

    def _read_marks(self) -> None:
        for key, log in self._table.marked().values_list("pk", "log").iterator(chunk_size=1000):
            self._rows |= dict.fromkeys(jobs_in(log), key)
            self._schedules |= dict.fromkeys(schedules_in(log), key)

    def _jobs(self) -> list[Living]:
        found: list[Living] = []
        for state in STATES:
            for queue in self._app.queues():
                skip = 0
                while some := living(self._engine, queue, state, skip):
                    skip += len(some)
                    found += [one for _, one in some if isinstance(one, Living)]
                    for id, why in some:
                        if isinstance(why, NotARow):
                            self._report.leave(f"job {id}", f"on {queue}", str(why))
        for queue in self._app.queues():
            for row in self._app.queue(queue).jobs("running", limit=1000):
                self._report.leave(f"job {row.id}", row.task, "it runs, or its worker was killed: repeat this later")
        return found

    # jobs
    def _write(self, jobs: list[Living]) -> list[Living]:
        """Write rows in one transaction: which jobs have one now."""
        written = []
        with transaction.atomic(using=self._table.database):
            rows = {row.pk: row for row in self._table.rows.filter(pk__in=self._known(jobs))}
            for job in jobs:
                try:
                    self._row(job, rows)
                except NotARow as why:
                    self._report.leave(f"job {job.id}", job.name, str(why))
                    continue
                written.append(job)
                self._report.add(_kind(job))
        return written

    def _known(self, jobs: Iterable[Living]) -> list[Any]:
        return [self._rows[job.id] for job in jobs if job.id in self._rows]

    def _row(self, job: Living, rows: dict[Any, Any]) -> None:
        values = self._values(job)
        if self._report.dry_run:
            return
        known = rows.get(self._rows.get(job.id))
        if known is not None:
            if not known.pending:
                _change(known, values, Place(job=job.id))
                known.save(using=self._table.database, update_fields=list(CHANGED))
            return
        made = self._table.model(**values, log=back_from(Place(job=job.id)))
        made.enqueue_time = job.made
        if job.began_ms:
            made.start_time = time_of(job.began_ms)
        made.save(using=self._table.database)
        self._rows[job.id] = made.pk

    def _values(self, job: Living) -> dict[str, Any]:
        values = {
            **self._call(job.target, job.name),
            "priority": job.priority,
            "retries_left": job.retries,
            "scheduled_time": None if job.due_ms is None else time_of(job.due_ms),
            "pending": True,
        }
        if job.handler:
            module, _, function = job.handler.partition(":")
            values["onfail_json"] = self._fitting("onfail_json", json.dumps({"module": module, "function": function}))
        if job.state is State.WAITING:
            parent = self._parents.get(job.id)
            if parent is None or (parent not in self._rows and not self._report.dry_run):
                raise NotARow("it waits for a job that was left where it is")
            values["dependency_id"] = self._rows.get(parent)
        return values

    def _call(self, target: Target, name: str) -> dict[str, Any]:
        call = {"module": target.module, "function": target.function}
        command = json.dumps({**call, "argv": list(target.args), "kwarg": target.kwargs}, ensure_ascii=False)
        return {"command_json": self._fitting("command_json", command), "name": self._fitting("name", name)}

    def _fitting(self, column: str, text: str) -> str:
        if not self._table.fits(column, text):
            raise NotARow(f"{column} takes fewer than the {len(text)} characters that it needs")
        return text

    def _remove(self, jobs: list[Living]) -> None:
        for job in reversed(jobs):  # what waits comes first, so that no job is cancelled for the end of another
            _, posted = self._engine.run(remove(self._engine.keys_of(job.queue), [(job.id, job.own_name)], "lapsed"))
            if posted:
                self._engine.run(self._engine.relay(job.queue))
        _at("jobs_removed")

    # schedules
    def _schedule(self, info: ScheduleInfo) -> None:
        try:
            target = target_of_schedule(self._engine, info)
            values = {
                **self._call(target, info.name),
                "priority": info.priority,
                "retries_left": 3,
                "cron": self._fitting("cron", info.when),
                "scheduled_time": None if info.next_ms is None else time_of(info.next_ms),
                "pending": True,
            }
        except NotARow as why:
            self._report.leave(f"schedule {info.name}", info.task, str(why))
            return
        self._report.add("cron")
        if self._report.dry_run:
            return
        self._write_schedule(info.name, values)
        self._app.schedules.get(info.name).remove()

    def _write_schedule(self, name: str, values: dict[str, Any]) -> None:
        place = Place(schedule=name)
        known = self._table.rows.filter(pk=self._schedules.get(name)).first()
        if known is None:
            made = self._table.model(**values, log=back_from(place))
            made.enqueue_time = timezone.now()
            made.save(using=self._table.database)
        elif not known.pending:
            _change(known, {**values, "retries_left": known.retries_left}, place)
            known.save(using=self._table.database, update_fields=list(CHANGED))


def _change(row: Any, values: dict[str, Any], place: Place) -> None:
    for column in CHANGED:
        if column in values:
            setattr(row, column, values[column])
    row.log = with_mark(row.log, back_from(place))


def _kind(job: Living) -> Kind:
    if job.began_ms:
        return "retrying"
    return "delayed" if job.due_ms is not None else "pending"


def _at(point: faults.Point) -> None:
    if faults.ACTIVE:
        faults.at(point)
