"""A `PeriodicTask` of django-celery-beat, read: what relevo makes of it, or why it cannot be imported."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.utils import timezone
from msgspec import Struct

from relevo.engine.engine import Engine
from relevo.engine.task import Task
from relevo.text.durations import Duration
from relevo.text.nearest import did_you_mean

_SECONDS = {"days": 86_400, "hours": 3600, "minutes": 60, "seconds": 1}
#: The task that Celery itself adds.
_OF_CELERY = "celery.backend_cleanup"


class NotImported(Exception):
    """The text says why."""


class Periodic(Struct, frozen=True, kw_only=True):
    """What one row says."""

    name: str
    task: Task[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    #: Options of when it fires; empty: once, at `at`.
    times: dict[str, Any]
    kind: str
    #: It runs once, and at this time; None: at its next tick.
    is_once: bool = False
    at: datetime | None = None
    is_enabled: bool = True
    #: Its first run comes after this.
    starts: datetime | None = None
    #: What relevo has no place for, and the import leaves out.
    notes: tuple[str, ...] = ()


def read(engine: Engine, row: Any, name: str, mapped: Mapping[str, str]) -> Periodic:
    """A row; NotImported if relevo cannot do what it says."""
    now = timezone.now()
    if row.task == _OF_CELERY:
        raise NotImported("results end by themselves in relevo")
    if row.expires is not None:
        raise NotImported(
            "it has expired" if row.expires <= now else f"it ends on {row.expires:%Y-%m-%d}, and schedules do not"
        )
    args, kwargs = _json(row.args, list, "args"), _json(row.kwargs, dict, "kwargs")
    kind, times = _times(row)
    is_once = kind == "clocked" or row.one_off
    if is_once and (row.last_run_at is not None or row.total_run_count):
        raise NotImported("it runs once, and has run")
    return Periodic(
        name=name,
        task=_with_options(_task(engine, row.task, mapped), row),
        args=tuple(args),
        kwargs=kwargs,
        times=times,
        kind=kind,
        is_once=is_once,
        at=row.clocked.clocked_time if kind == "clocked" else None,
        is_enabled=row.enabled,
        starts=row.start_time if row.start_time is not None and row.start_time > now else None,
        notes=_notes(row),
    )


def _task(engine: Engine, name: str, mapped: Mapping[str, str]) -> Task[..., Any]:
    wanted = mapped.get(name, name)
    found = engine.tasks.get(wanted)
    if found is None:
        near = did_you_mean(wanted, engine.tasks)
        raise NotImported(f"no task of this project is called {wanted!r}{near}; say --map {name}=ITS.NAME.HERE")
    return found


def _with_options(task: Task[..., Any], row: Any) -> Task[..., Any]:
    options: dict[str, Any] = {}
    if row.queue:
        options["queue"] = row.queue
    if row.expire_seconds:
        options["expires"] = row.expire_seconds
    return task.using(**options) if options else task


def _times(row: Any) -> tuple[str, dict[str, Any]]:
    if row.clocked_id is not None:
        return "clocked", {}
    if row.solar_id is not None:
        raise NotImported(f"{row.solar}: relevo has no schedules by the sun; enqueue it from a daily task")
    if row.interval_id is not None:
        return "interval", {"every": _every(row.interval)}
    if row.crontab_id is not None:
        return "crontab", _cron(row.crontab)
    raise NotImported("it has no schedule")


def _every(interval: Any) -> Duration:
    seconds = _SECONDS.get(interval.period)
    if seconds is None:
        raise NotImported(f"{interval}: intervals of relevo are whole seconds or longer")
    return float(interval.every * seconds)


def _cron(crontab: Any) -> dict[str, Any]:
    fields = [
        str(text).replace(" ", "")
        for text in (
            crontab.minute,
            crontab.hour,
            crontab.day_of_month,
            crontab.month_of_year,
            crontab.day_of_week,
        )
    ]
    if fields[2] != "*" and fields[4] != "*":
        raise NotImported(
            f"{' '.join(fields)}: Celery runs it on days that are both such a day of the month and such a weekday, "
            "cron on days that are either; name one of them, and ask for the other in the task"
        )
    return {"cron": " ".join(fields), "tz": str(crontab.timezone)}


def _json(text: str, kind: type, what: str) -> Any:
    try:
        found = json.loads(text or ("[]" if kind is list else "{}"))
    except ValueError:
        found = None
    if not isinstance(found, kind):
        raise NotImported(f"{what} is not JSON of the right kind: {text!r:.80}")
    return found


def _notes(row: Any) -> tuple[str, ...]:
    given = {"priority": row.priority is not None, "exchange": row.exchange, "routing_key": row.routing_key}
    given["headers"] = row.headers not in ("", "{}")
    return tuple(f"{name} is not taken over" for name, is_given in given.items() if is_given)
