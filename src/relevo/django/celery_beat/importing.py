"""Makes schedules of relevo from those of django-celery-beat. Repeated, it changes nothing twice."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct, field

from relevo.django.celery_beat.reading import NotImported, Periodic, read
from relevo.django.site_app import SiteApp
from relevo.errors import RelevoError, StoreError
from relevo.schedules.cron import next_after
from relevo.schedules.firing import described, registering
from relevo.schedules.schedule import schedule_of
from relevo.text.durations import LONGEST
from relevo.workflows.steps import Step

#: Seconds for which the name of a job that runs once is held after its time.
HELD = 30 * 86_400.0
PAUSED = "not enabled in django-celery-beat"


class ImportReport(Struct, kw_only=True):
    """What an import did."""

    dry_run: bool
    #: By kind: interval, crontab, clocked.
    imported: dict[str, int] = field(default_factory=dict)
    #: Schedules that were there already, just so.
    unchanged: int = 0
    paused: int = 0
    left: list[dict[str, str]] = field(default_factory=list)
    notes: list[dict[str, str]] = field(default_factory=list)


class Importer:
    """Imports all rows."""

    def __init__(self, app: SiteApp, mapped: Mapping[str, str], report: ImportReport) -> None:
        self._app = app
        self._engine = app.engine
        self._mapped = mapped
        self._report = report

    def run(self, rows: Any) -> None:
        """Import these rows, each or none of it."""
        names: set[str] = set()
        for row in rows.select_related("interval", "crontab", "solar", "clocked").order_by("pk").iterator(200):
            name = re.sub(r"[\s:]+", "-", row.name.strip()).lstrip("-") or "periodic"
            name = f"{name[:180]}-{row.pk}" if name in names else name
            names.add(name)
            try:
                self._import(read(self._engine, row, name, self._mapped))
            except (NotImported, RelevoError) as error:
                if isinstance(error, StoreError):
                    raise
                self._report.left.append({"name": row.name, "task": row.task, "reason": str(error)})

    def _import(self, one: Periodic) -> None:
        is_new = self._once(one) if one.is_once else self._scheduled(one)
        if is_new:
            self._report.imported[one.kind] = self._report.imported.get(one.kind, 0) + 1
        else:
            self._report.unchanged += 1
        self._report.paused += not one.is_enabled
        self._report.notes += [{"name": one.name, "note": note} for note in one.notes]

    def _scheduled(self, one: Periodic) -> bool:
        call: Step[Any, Any] = Step(one.task, one.args, one.kwargs, takes_result=False)
        wanted = described(self._engine, one.name, call, one.times, "call")
        if self._report.dry_run:
            return True
        change = self._engine.run(registering(self._engine, wanted))
        schedule = self._app.schedules.get(one.name)
        if not one.is_enabled:
            schedule.pause(reason=PAUSED)
        elif one.starts is not None:
            schedule.pause(reason="it starts later", until=one.starts)
        return change != "same"

    def _once(self, one: Periodic) -> bool:
        if not one.is_enabled:
            raise NotImported("it runs once and is not enabled: enqueue it when it is wanted")
        at = one.at or self._next(one)
        # The name is held beyond the run, so that a second import does not make a second job.
        held = max(0.0, (at - datetime.now(UTC)).total_seconds()) + HELD
        task = one.task.using(name=one.name, unique=min(held, LONGEST), eta=at, on_commit=False)
        if self._report.dry_run:
            task.signature.encode(one.args, one.kwargs, limit=self._engine.settings.max_payload)
            return True
        return task.enqueue(*one.args, **one.kwargs).created

    def _next(self, one: Periodic) -> datetime:
        """Its next tick, or its first one."""
        when = schedule_of(name=one.name, target=one.task.target, **one.times).when
        after = one.starts or datetime.now(UTC)
        return datetime.fromtimestamp(next_after(when, int(after.timestamp() * 1000)) / 1000, UTC)
