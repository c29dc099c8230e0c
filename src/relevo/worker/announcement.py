"""What a worker process says of itself when it starts: its app, settings, server, tasks, schedules and queues."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from relevo.bus.bus import Bus
from relevo.engine.engine import Engine
from relevo.schedules.cron import explain
from relevo.schedules.firing import Timetable
from relevo.schedules.schedule import TIMES, schedule_of
from relevo.settings import settings_files
from relevo.text.masking import masked_url

if TYPE_CHECKING:
    from relevo.worker.worker import Worker

log = logging.getLogger("relevo.worker")

#: Names in one line.
MOST_NAMES = 40


def announce(worker: Worker, *, in_full: bool) -> None:
    """Log it; `in_full` with the names of tasks and schedules, which are the same for all processes of a command."""
    engine = worker.engine
    tasks, actions, schedules = sorted(engine.tasks), sorted(engine.part(Bus).actions), schedules_of(engine)
    parts = [
        f"app {engine.name}{f' ({engine.loaded_from})' if engine.loaded_from else ''} in {engine.settings.env}",
        f"settings from {', '.join(settings_files()) or 'no file'}",
        f"server {server_of(engine)}",
        _many(len(tasks), "task"),
        *([_many(len(actions), "action")] if actions else []),
        _many(len(schedules), "schedule"),
        f"queues {_listed(worker.queues_as_given)}",
        f"{worker.concurrency} at once",
    ]
    log.info("worker %s: %s", worker.id, ", ".join(parts))
    if not in_full:
        return
    for what, names in (("tasks", tasks), ("actions", actions), ("schedules", schedules)):
        if names:
            log.info("%s: %s", what, _listed(names))


def server_of(engine: Engine) -> str:
    """The server, for people."""
    source = engine.client.source
    return f"embedded in {source.data_dir}" if source.url is None else masked_url(source.url)


def schedules_of(engine: Engine) -> list[str]:
    """The schedules that code and settings name, each with its times."""
    found = {name: one.when for name, one in engine.part(Timetable).named.items()}
    for name, table in engine.settings.schedules.items():
        times = {key: value for key, value in table.items() if key in TIMES}
        found[name] = schedule_of(name=name, target=table["task"], **times).when
    return [f"{name} ({explain(when)})" for name, when in sorted(found.items())]


def _listed(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - MOST_NAMES} more" if len(listed) > MOST_NAMES else ""
    return ", ".join(listed[:MOST_NAMES]) + more


def _many(count: int, what: str) -> str:
    return f"{count or 'no'} {what}{'' if count == 1 else 's'}"
