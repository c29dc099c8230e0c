"""The API of schedules: read, pause, resume, run, edit and remove them.

They are registered and fired in `firing.py`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec import Struct

from relevo.engine import workers
from relevo.engine.handle import Job
from relevo.engine.pauses import Until, ends_of, note_of
from relevo.engine.task import Task
from relevo.errors import BadSignature, OptionError, UnknownSchedule
from relevo.schedules import schedule as model
from relevo.schedules import store
from relevo.schedules.cron import Cron, explain, next_after
from relevo.schedules.firing import Timetable, described, fire, registering
from relevo.schedules.schedule import TIMES, schedule_of
from relevo.store.plan import Call
from relevo.text.nearest import did_you_mean
from relevo.workflows.enqueuing import athrough_flow, through_flow
from relevo.workflows.steps import Step

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

Infos: TypeAlias = "list[ScheduleInfo]"
Names: TypeAlias = "list[str]"

#: Workers register the schedules of their code every two minutes. One not registered for this long is stale.
STALE_MS = 300_000


class ScheduleInfo(Struct, frozen=True, kw_only=True):
    """A schedule as shown to people."""

    name: str
    task: str
    queue: str
    #: The cron expression, or the seconds between two runs.
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
    #: No code registers it any more.
    stale: bool
    paused_ms: int | None
    next_ms: int | None
    last_job: str
    fired: int
    skipped: int
    dropped: int
    #: When the pause expires; None: it does not, or there is none.
    until_ms: int | None = None


class Schedule:
    """A handle of one schedule; it holds only the name."""

    __slots__ = ("_engine", "name")

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self.name = name

    def __repr__(self) -> str:
        return f"<Schedule {self.name}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def info(self) -> ScheduleInfo:
        """All properties; UnknownSchedule if it does not exist."""
        return self._engine.run(self._info())

    async def ainfo(self) -> ScheduleInfo:
        """`info` for async code."""
        return await self._engine.arun(self._info())

    def pause(self, *, reason: str = "", by: str = "", until: Until = None) -> bool:
        """Fire no more ticks. False if it was paused already.

        With `until`, a duration or an aware datetime, it resumes with the first tick after that, by the server's clock.
        `reason` and `by` are shown in `info` and by the commands.
        """
        return self._engine.run(self._pause(reason, by, until))

    async def apause(self, *, reason: str = "", by: str = "", until: Until = None) -> bool:
        """`pause` for async code."""
        return await self._engine.arun(self._pause(reason, by, until))

    def resume(self) -> bool:
        """Resume with the next tick; ticks during the pause are not caught up. False if it was not paused."""
        return self._engine.run(self._resume())

    async def aresume(self) -> bool:
        """`resume` for async code."""
        return await self._engine.arun(self._resume())

    def run_now(self) -> Job[Any]:
        """Queue one job now. The ticks do not change."""
        return self._engine.run(self._run_now())

    async def arun_now(self) -> Job[Any]:
        """`run_now` for async code."""
        return await self._engine.arun(self._run_now())

    def edit(self, **changes: Any) -> ScheduleInfo:
        """Change when it fires: cron, every, tz, overlap, missed, missed_limit, jitter.

        The change holds until the definition in code changes. For other arguments or options of its jobs call
        `app.schedule(name, task, …)` again.
        """
        return self._engine.run(self._edit(changes))

    async def aedit(self, **changes: Any) -> ScheduleInfo:
        """`edit` for async code."""
        return await self._engine.arun(self._edit(changes))

    def remove(self) -> bool:
        """Remove it and its history; jobs that it queued stay. False if there was none.

        A schedule defined by a decorator or the settings is registered again by the next worker: pause it instead.
        """
        return self._engine.run(self._remove())

    async def aremove(self) -> bool:
        """`remove` for async code."""
        return await self._engine.arun(self._remove())

    def history(self, limit: int = 20) -> list[store.Ran]:
        """Recent ticks, newest first: fired, skipped or dropped."""
        return self._engine.run(self._history(limit))

    async def ahistory(self, limit: int = 20) -> list[store.Ran]:
        """`history` for async code."""
        return await self._engine.arun(self._history(limit))

    # plans
    def _standing(self) -> Generator[Call[Any], Any, store.Standing]:
        engine = self._engine
        queue: str | None = yield store.home(engine.keys, self.name)
        if queue is not None:
            found = yield from store.look(engine.keys_of(queue), [self.name])
            if found:
                return found[0]
        names = yield store.homes(engine.keys)
        raise UnknownSchedule(f"no schedule {self.name!r:.80}{did_you_mean(self.name, names)}")

    def _believed(self, standing: store.Standing) -> model.Schedule:
        if standing.signature_error:
            wrong = f"schedule {self.name!r:.80}: its record is refused: {standing.signature_error}"
            raise BadSignature(f"{wrong}. Register it again, or remove it")
        return standing.schedule

    def _info(self) -> Generator[Call[Any], Any, ScheduleInfo]:
        standing = yield from self._standing()
        now_ms = yield from self._engine.now_ms()
        return _info(self._engine, standing, (yield from _stale_before(self._engine, now_ms)), now_ms)

    def _pause(self, reason: str, by: str, until: Until) -> Generator[Call[Any], Any, bool]:
        note = note_of(reason, by)
        schedule = (yield from self._standing()).schedule
        ends_ms = ends_of(until, (yield from self._engine.now_ms()))
        due_ms = next_after(schedule.when, ends_ms) if ends_ms else 0
        keys = self._engine.keys_of(schedule.queue)
        changed = yield store.suspend(keys, self.name, pause=True, due_ms=due_ms, ends_ms=ends_ms, note=note)
        return bool(changed)

    def _resume(self) -> Generator[Call[Any], Any, bool]:
        schedule = (yield from self._standing()).schedule
        now_ms = yield from self._engine.now_ms()
        keys = self._engine.keys_of(schedule.queue)
        changed = yield store.suspend(keys, self.name, pause=False, due_ms=next_after(schedule.when, now_ms))
        return bool(changed)

    def _run_now(self) -> Generator[Call[Any], Any, Job[Any]]:
        engine = self._engine
        schedule = self._believed((yield from self._standing()))
        yield from engine.list_queue(schedule.queue)
        now_ms = yield from engine.now_ms()
        ids = yield fire(engine, schedule, [now_ms], due_ms=None)
        if not ids:
            raise UnknownSchedule(f"no schedule {self.name!r:.80}: it was removed just now")
        task = engine.tasks.get(schedule.target)
        return Job(engine, ids[0], schedule.queue, task.signature.decode_result if task else None)

    def _edit(self, changes: Mapping[str, Any]) -> Generator[Call[Any], Any, ScheduleInfo]:
        for change in changes:
            if change not in TIMES:
                raise OptionError(
                    f"edit: {change!r:.60} is not about when it fires{did_you_mean(change, TIMES)}; "
                    "call app.schedule(name, task, …) again for other options"
                )
        before = self._believed((yield from self._standing()))
        after = _edited(before, changes)
        now_ms = yield from self._engine.now_ms()
        keys = self._engine.keys_of(before.queue)
        yield store.enroll(keys, after, next_after(after.when, now_ms), "")
        yield from store.stay_suspended(keys, after, now_ms)
        return (yield from self._info())

    def _remove(self) -> Generator[Call[Any], Any, bool]:
        engine = self._engine
        queue: str | None = yield store.home(engine.keys, self.name)
        if queue is None:
            return False
        gone: bool = yield store.unenroll(engine.keys_of(queue), self.name)
        yield store.move_out(engine.keys, self.name)
        # Again, in case it was registered between the two calls: it would fire without being listed.
        yield store.unenroll(engine.keys_of(queue), self.name)
        return gone

    def _history(self, limit: int) -> Generator[Call[Any], Any, list[store.Ran]]:
        if not 1 <= limit <= store.RUNS_MAX:
            raise OptionError(f"history: 1 to {store.RUNS_MAX} entries, found {limit!r:.60}")
        schedule = (yield from self._standing()).schedule
        ran: list[store.Ran] = yield store.history(self._engine.keys_of(schedule.queue), self.name, limit)
        return ran


class Schedules:
    """All schedules of an app: `app.schedules`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def list(self) -> Infos:
        """All of them, by name."""
        return self._engine.run(self._list())

    async def alist(self) -> Infos:
        """`list` for async code."""
        return await self._engine.arun(self._list())

    def get(self, name: str) -> Schedule:
        """A schedule by its name. Makes no call to the server."""
        return Schedule(self._engine, name)

    def remove_stale(self) -> Names:
        """Remove schedules that a decorator or the settings no longer define; their names."""
        return self._engine.run(self._remove_stale())

    async def aremove_stale(self) -> Names:
        """`remove_stale` for async code."""
        return await self._engine.arun(self._remove_stale())

    def _list(self) -> Generator[Call[Any], Any, Infos]:
        engine = self._engine
        by_queue: dict[str, Names] = {}
        homes: dict[str, str] = yield store.homes(engine.keys)
        for name, queue in homes.items():
            by_queue.setdefault(queue, []).append(name)
        now_ms = yield from engine.now_ms()
        stale_before = yield from _stale_before(engine, now_ms)
        found: Infos = []
        for queue, names in by_queue.items():
            standings = yield from store.look(engine.keys_of(queue), names)
            found += [_info(engine, standing, stale_before, now_ms) for standing in standings]
        return sorted(found, key=lambda info: info.name)

    def _remove_stale(self) -> Generator[Call[Any], Any, Names]:
        stale = [info.name for info in (yield from self._list()) if info.stale]
        for name in stale:
            yield from Schedule(self._engine, name)._remove()
        return stale


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


def _stale_before(engine: Engine, now_ms: int) -> Generator[Call[Any], Any, int]:
    """Schedules of code registered before this time are stale; 0: none is."""
    alive, _ = yield from workers.roll(engine.keys, now_ms)
    return now_ms - STALE_MS if alive else 0  # without any worker none can have been registered


def _info(engine: Engine, standing: store.Standing, stale_before: int, now_ms: int) -> ScheduleInfo:
    schedule = standing.schedule
    has_ended = standing.until_ms is not None and standing.until_ms <= now_ms
    is_named = schedule.origin == "call" or schedule.name in engine.part(Timetable).named
    when, body = schedule.when, msgspec.json.decode(schedule.body)
    written, zone = (when.expression, when.tz) if isinstance(when, Cron) else (f"{when.seconds:.12g}s", "")
    return ScheduleInfo(
        name=schedule.name,
        task=schedule.target,
        queue=schedule.queue,
        when=written,
        tz=zone,
        words=explain(when),
        args=body.get("a", []),
        kwargs=body.get("k", {}),
        priority=schedule.priority,
        overlap=schedule.overlap,
        missed=schedule.missed,
        missed_limit=schedule.missed_limit,
        jitter=schedule.jitter,
        origin=schedule.origin,
        stale=not is_named and (standing.seen_ms or 0) < stale_before,
        paused_ms=None if has_ended else standing.paused_ms,
        next_ms=standing.due_ms,
        last_job=standing.job,
        fired=standing.fired,
        skipped=standing.skipped,
        dropped=standing.dropped,
        until_ms=None if has_ended else standing.until_ms,
    )


def make_schedule(engine: Engine, name: str, call: Any, options: dict[str, Any], *, run_now: bool) -> Schedule:
    """Make or change a schedule, through the app's middleware; with `run_now`, run a new one at once, too."""
    if isinstance(call, Task):
        call = Step(call, takes_result=False)
    if not engine.middleware or not isinstance(call, Step):
        return engine.run(_scheduling(engine, name, call, options, run_now=run_now))
    return through_flow(
        engine, call, lambda step: engine.run(_scheduling(engine, name, step, options, run_now=run_now))
    )


async def amake_schedule(engine: Engine, name: str, call: Any, options: dict[str, Any], *, run_now: bool) -> Schedule:
    """`make_schedule` for async code."""
    """`schedule` for async code."""
    if isinstance(call, Task):
        call = Step(call, takes_result=False)
    if not engine.middleware or not isinstance(call, Step):
        return await engine.arun(_scheduling(engine, name, call, options, run_now=run_now))
    return await athrough_flow(
        engine, call, lambda step: engine.arun(_scheduling(engine, name, step, options, run_now=run_now))
    )


def _scheduling(
    engine: Engine, name: str, call: Any, options: dict[str, Any], *, run_now: bool
) -> Generator[Call[Any], Any, Schedule]:
    change = yield from registering(engine, described(engine, name, call, options, "call"))
    schedule = Schedule(engine, name)
    if run_now and change == "new":
        yield from schedule._run_now()
    return schedule
