"""Schedules: jobs that come back by the clock, as records that can be looked at, paused, changed and removed.

Any worker fires them. A tick is fired by the one script that also queues its job and names the next tick, so it fires
once however many workers try, and there is no process that must be alive for it.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec import Struct

from relevo.errors import OptionError, UnknownSchedule
from relevo.flow.steps import Step
from relevo.handle import Job
from relevo.model import schedule as model
from relevo.model.cron import Cron, explain, next_after
from relevo.model.nearest import did_you_mean
from relevo.model.schedule import TIMES, due, read_schedule, schedule_of, shifted
from relevo.store import schedules as store
from relevo.store import workers
from relevo.store.plan import Call
from relevo.store.push import NewJob
from relevo.task import Task

if TYPE_CHECKING:
    from relevo.app import Relevo

log = logging.getLogger("relevo.schedules")

Infos: TypeAlias = "list[ScheduleInfo]"
Names: TypeAlias = "list[str]"

#: Options of a single job, which make no sense for one that comes back.
_NOT_HERE = ("delay", "eta", "countdown", "name", "unique", "depends_on")
#: Workers name the schedules of their code every two minutes. One that none has named for so long is stale.
STALE_MS = 300_000
#: A record that cannot be read is looked at again after this.
_UNREADABLE_MS = 60_000


class ScheduleInfo(Struct, frozen=True):
    """A schedule, for people."""

    name: str
    task: str
    queue: str
    #: The cron expression, or how many seconds lie between two runs.
    when: str
    tz: str
    #: When that is, in words.
    words: str
    args: Any
    kwargs: Any
    priority: int
    overlap: str
    missed: str
    missed_limit: int
    jitter: float
    #: code (a decorator), settings, or call
    origin: str
    #: No code names it any more.
    stale: bool
    paused_ms: int | None
    next_ms: int | None
    last_job: str
    fired: int
    skipped: int
    dropped: int


class Schedule:
    """One schedule. Cheap to make, keeps nothing but its name."""

    __slots__ = ("_app", "name")

    def __init__(self, app: Relevo, name: str) -> None:
        self._app = app
        self.name = name

    def __repr__(self) -> str:
        return f"<Schedule {self.name}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def info(self) -> ScheduleInfo:
        """Everything known about it; UnknownSchedule if there is none."""
        return self._app.run(self._info())

    async def ainfo(self) -> ScheduleInfo:
        """`info` for async code."""
        return await self._app.arun(self._info())

    def pause(self) -> bool:
        """Fire no more ticks. False if it was paused already."""
        return self._app.run(self._suspend(True))

    async def apause(self) -> bool:
        """`pause` for async code."""
        return await self._app.arun(self._suspend(True))

    def resume(self) -> bool:
        """Go on with the next tick; those of the pause are not made up for. False if it was not paused."""
        return self._app.run(self._suspend(False))

    async def aresume(self) -> bool:
        """`resume` for async code."""
        return await self._app.arun(self._suspend(False))

    def run_now(self) -> Job[Any]:
        """Queue one job of it now. Its ticks stay as they are."""
        return self._app.run(self._run_now())

    async def arun_now(self) -> Job[Any]:
        """`run_now` for async code."""
        return await self._app.arun(self._run_now())

    def edit(self, **changes: Any) -> ScheduleInfo:
        """Change when it fires: cron, every, tz, overlap, missed, missed_limit, jitter.

        The change stands until the code that made it changes. For other arguments or options of its jobs call
        `app.schedule(name, task, …)` again.
        """
        return self._app.run(self._edit(changes))

    async def aedit(self, **changes: Any) -> ScheduleInfo:
        """`edit` for async code."""
        return await self._app.arun(self._edit(changes))

    def remove(self) -> bool:
        """Remove it and its history; jobs that it queued stay. False if there was none.

        One that a decorator or the settings name comes back with the next worker: pause it instead.
        """
        return self._app.run(self._remove())

    async def aremove(self) -> bool:
        """`remove` for async code."""
        return await self._app.arun(self._remove())

    def history(self, limit: int = 20) -> list[store.Ran]:
        """What it did of late, newest first: ticks that fired, were skipped or dropped."""
        return self._app.run(self._history(limit))

    async def ahistory(self, limit: int = 20) -> list[store.Ran]:
        """`history` for async code."""
        return await self._app.arun(self._history(limit))

    # plans
    def _standing(self) -> Generator[Call[Any], Any, store.Standing]:
        app = self._app
        queue: str | None = yield store.home(app.keys, self.name)
        if queue is not None:
            found = yield from store.look(app.keys_of(queue), [self.name])
            if found:
                return found[0]
        names = yield store.homes(app.keys)
        raise UnknownSchedule(f"no schedule {self.name!r:.80}{did_you_mean(self.name, names)}")

    def _info(self) -> Generator[Call[Any], Any, ScheduleInfo]:
        standing = yield from self._standing()
        return _info(self._app, standing, (yield from _stale_before(self._app)))

    def _suspend(self, pause: bool) -> Generator[Call[Any], Any, bool]:
        schedule = (yield from self._standing()).schedule
        now_ms = yield from self._app.now_ms()
        keys = self._app.keys_of(schedule.queue)
        changed = yield store.suspend(keys, self.name, pause=pause, due_ms=next_after(schedule.when, now_ms))
        return bool(changed)

    def _run_now(self) -> Generator[Call[Any], Any, Job[Any]]:
        app = self._app
        schedule = (yield from self._standing()).schedule
        yield from app.list_queue(schedule.queue)
        now_ms = yield from app.now_ms()
        ids = yield _fire(app, schedule, [now_ms], due_ms=None)
        if not ids:
            raise UnknownSchedule(f"no schedule {self.name!r:.80}: it was removed just now")
        task = app.tasks.get(schedule.target)
        return Job(app, ids[0], schedule.queue, task.signature.decode_result if task else None)

    def _edit(self, changes: Mapping[str, Any]) -> Generator[Call[Any], Any, ScheduleInfo]:
        for change in changes:
            if change not in TIMES:
                raise OptionError(
                    f"edit: {change!r:.60} is not about when it fires{did_you_mean(change, TIMES)}; "
                    "call app.schedule(name, task, …) again for other options"
                )
        before = (yield from self._standing()).schedule
        after = _edited(before, changes)
        now_ms = yield from self._app.now_ms()
        yield store.enroll(self._app.keys_of(before.queue), after, next_after(after.when, now_ms), "")
        return (yield from self._info())

    def _remove(self) -> Generator[Call[Any], Any, bool]:
        app = self._app
        queue: str | None = yield store.home(app.keys, self.name)
        if queue is None:
            return False
        gone: bool = yield store.unenroll(app.keys_of(queue), self.name)
        yield store.move_out(app.keys, self.name)
        # Once more, for one who registered it between the two: it would fire, and nobody would find it.
        yield store.unenroll(app.keys_of(queue), self.name)
        return gone

    def _history(self, limit: int) -> Generator[Call[Any], Any, list[store.Ran]]:
        if not 1 <= limit <= store.RUNS_MAX:
            raise OptionError(f"history: 1 to {store.RUNS_MAX} entries, found {limit!r:.60}")
        schedule = (yield from self._standing()).schedule
        ran: list[store.Ran] = yield store.history(self._app.keys_of(schedule.queue), self.name, limit)
        return ran


class Schedules:
    """All schedules of an app: `app.schedules`."""

    def __init__(self, app: Relevo) -> None:
        self._app = app

    def list(self) -> Infos:
        """All of them, by name."""
        return self._app.run(self._list())

    async def alist(self) -> Infos:
        """`list` for async code."""
        return await self._app.arun(self._list())

    def get(self, name: str) -> Schedule:
        """A schedule by its name. Nothing is asked yet."""
        return Schedule(self._app, name)

    def remove_stale(self) -> Names:
        """Remove those that a decorator or the settings once named and none does any more: their names."""
        return self._app.run(self._remove_stale())

    async def aremove_stale(self) -> Names:
        """`remove_stale` for async code."""
        return await self._app.arun(self._remove_stale())

    def _list(self) -> Generator[Call[Any], Any, Infos]:
        app = self._app
        by_queue: dict[str, Names] = {}
        homes: dict[str, str] = yield store.homes(app.keys)
        for name, queue in homes.items():
            by_queue.setdefault(queue, []).append(name)
        stale_before = yield from _stale_before(app)
        found: Infos = []
        for queue, names in by_queue.items():
            standings = yield from store.look(app.keys_of(queue), names)
            found += [_info(app, standing, stale_before) for standing in standings]
        return sorted(found, key=lambda info: info.name)

    def _remove_stale(self) -> Generator[Call[Any], Any, Names]:
        stale = [info.name for info in (yield from self._list()) if info.stale]
        for name in stale:
            yield from Schedule(self._app, name)._remove()
        return stale


def described(app: Relevo, name: str, call: Any, options: Mapping[str, Any], origin: model.Origin) -> model.Schedule:
    """The record of a schedule, from a task or a complete call of it and the options of both."""
    times = {option: value for option, value in options.items() if option in TIMES}
    others = {option: value for option, value in options.items() if option not in TIMES}
    for option in _NOT_HERE:
        if option in others:
            raise OptionError(f"{option}: an option of one job, not of a schedule")
    if isinstance(call, Step):
        task, args, kwargs = call.task, call.args, call.kwargs
    elif isinstance(call, Task):
        task, args, kwargs = call, (), {}
    else:
        raise OptionError(f"a schedule runs a task, or a call such as report.s(7), found {call!r:.80}")
    if task.app is not app:
        raise OptionError(f"{task.target} is a task of the app {task.app.name!r}, not of {app.name!r}")
    if others:
        task = task.using(**others)
    chosen = task.options
    if chosen.delay or chosen.eta_ms is not None or chosen.name or chosen.depends_on or chosen.unique:
        raise OptionError(
            f"{task.target}: delay, eta, name, unique and depends_on are options of one job, not of a schedule"
        )
    body = task.body(task.signature.encode(args, kwargs, limit=app.settings.max_payload))
    return schedule_of(
        name=name,
        target=task.target,
        queue=task.options.queue,
        body=msgspec.Raw(body),
        priority=task.options.priority,
        group=task.options.group,
        weight=task.options.weight,
        expires=task.options.expires,
        failure_ttl=task.options.failure_ttl,
        origin=origin,
        **times,
    )


def registering(app: Relevo, schedule: model.Schedule) -> Generator[Call[Any], Any, str]:
    """Register a schedule: 'new', 'changed' or 'same'. One that moved to another queue leaves the old one."""
    queue = schedule.queue
    before: str | None = yield store.home(app.keys, schedule.name)
    if before != queue:
        yield store.settle_in(app.keys, schedule.name, queue)
    if before is not None and before != queue:
        yield store.unenroll(app.keys_of(before), schedule.name)
    yield from app.list_queue(queue)
    now_ms = yield from app.now_ms()
    code = ""
    if schedule.origin != "call":
        code = blake2b(msgspec.json.encode(schedule), digest_size=12).hexdigest()
    said: str = yield store.enroll(app.keys_of(queue), schedule, next_after(schedule.when, now_ms), code)
    # Somebody may have removed it meanwhile, or moved it, as workers of an older version do; and have been here before
    # us. Where nobody looks for it, it must not fire.
    home: str | None = yield store.home(app.keys, schedule.name)
    if home != queue:
        yield store.unenroll(app.keys_of(queue), schedule.name)
    return said


def fire_due(app: Relevo, queue: str, name: str, text: bytes, now_ms: int) -> Generator[Call[Any], Any, int]:
    """Fire what is due of a schedule, as `errands.lua` gave it: how many jobs were queued."""
    due_text, _, record = text.partition(b"\n")
    try:
        schedule = read_schedule(record)
        due_ms = int(due_text)
    except (msgspec.DecodeError, ValueError, OptionError) as error:
        log.error("%s: schedule %s cannot be read: %s", queue, name, error)
        yield store.postpone(app.keys_of(queue), name, now_ms + _UNREADABLE_MS)
        return 0
    firing = due(schedule, due_ms, now_ms)
    if firing.dropped:
        log.warning("schedule %s: %d ticks were missed and are not made up for", name, firing.dropped)
    ids: list[str] | None = yield _fire(
        app, schedule, firing.ticks, due_ms=due_ms, next_ms=firing.next_ms, dropped=firing.dropped
    )
    return len(ids or ())


def _fire(
    app: Relevo,
    schedule: model.Schedule,
    ticks: Any,
    *,
    due_ms: int | None,
    next_ms: int = 0,
    dropped: int = 0,
) -> Call[list[str] | None]:
    rows = []
    for tick_ms in ticks:
        body = bytes(schedule.body)[:-1] + b',"tk":%d' % tick_ms
        if schedule.expires is not None:
            body += b',"x":%d' % (tick_ms + round(schedule.expires * 1000))
        when = str(shifted(tick_ms, schedule)) if schedule.jitter and due_ms is not None else ""
        job = NewJob(app.new_id(), schedule.priority, body + b"}", when, schedule.group, schedule.weight)
        rows.append(store.Tick(tick_ms, job))
    return store.fire(
        app.keys_of(schedule.queue),
        schedule,
        rows,
        due_ms=due_ms,
        next_ms=next_ms,
        dropped=dropped,
        fail_ms=max(1, round(schedule.failure_ttl * 1000)),
    )


def _edited(before: model.Schedule, changes: Mapping[str, Any]) -> model.Schedule:
    kept = {name: getattr(before, name) for name in before.__struct_fields__ if name not in ("when", "jitter")}
    when = before.when
    times: dict[str, Any] = (
        {"cron": when.expression, "tz": when.tz} if isinstance(when, Cron) else {"every": when.seconds}
    )
    if "every" in changes:
        times = {}
    elif "cron" in changes:
        times.pop("every", None)
    return schedule_of(**{**kept, "jitter": before.jitter, **times, **changes})


def _stale_before(app: Relevo) -> Generator[Call[Any], Any, int]:
    """Schedules of code that nobody has named since then are stale; 0: none is."""
    alive, _ = yield from workers.living(app.keys)
    now_ms = yield from app.now_ms()
    return now_ms - STALE_MS if alive else 0  # with no worker at all, nobody could have named them


def _info(app: Relevo, standing: store.Standing, stale_before: int) -> ScheduleInfo:
    schedule = standing.schedule
    is_named = schedule.origin == "call" or schedule.name in app.timetable
    when, body = schedule.when, msgspec.json.decode(schedule.body)
    written, zone = (when.expression, when.tz) if isinstance(when, Cron) else (f"{when.seconds:.12g}s", "")
    return ScheduleInfo(
        schedule.name,
        schedule.target,
        schedule.queue,
        written,
        zone,
        explain(when),
        body.get("a", []),
        body.get("k", {}),
        schedule.priority,
        schedule.overlap,
        schedule.missed,
        schedule.missed_limit,
        schedule.jitter,
        schedule.origin,
        not is_named and (standing.seen_ms or 0) < stale_before,
        standing.paused_ms,
        standing.due_ms,
        standing.job,
        standing.fired,
        standing.skipped,
        standing.dropped,
    )
