"""Registers schedules from code, settings and callers, and fires their due ticks.

Any worker fires them. One script fires a tick, queues its job and sets the next tick, so each tick fires once however
many workers try, and no particular process must be alive.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec

from relevo.engine.ids import made_ms
from relevo.engine.push import NewJob
from relevo.engine.task import Task
from relevo.errors import ConfigurationError, OptionError, PayloadError
from relevo.schedules import schedule as model
from relevo.schedules import store
from relevo.schedules.cron import next_after
from relevo.schedules.schedule import TIMES, due, read_schedule, schedule_of, shifted
from relevo.store.plan import Call
from relevo.workflows.steps import Step

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

log = logging.getLogger("relevo.schedules")

#: Options of a single job, which make no sense for a repeated one.
_NOT_HERE = ("delay", "eta", "countdown", "name", "unique", "depends_on")
#: A record that cannot be read is tried again after this.
_UNREADABLE_MS = 60_000


class Timetable:
    """The schedules that decorators name."""

    def __init__(self, _engine: Engine) -> None:
        self.named: dict[str, model.Schedule] = {}


def described(engine: Engine, name: str, call: Any, options: Mapping[str, Any], origin: model.Origin) -> model.Schedule:
    """The record of a schedule, from a task or a complete call of it and the options of both."""
    times = {option: value for option, value in options.items() if option in TIMES}
    others = {option: value for option, value in options.items() if option not in TIMES}
    for option in _NOT_HERE:
        if option in others:
            raise OptionError(f"{option}: an option of one job, not of a schedule")
    if isinstance(call, Step):
        task, step = call.task, call
    elif isinstance(call, Task):
        task, step = call, Step(call)
    else:
        raise OptionError(f"a schedule runs a task, or a call such as report.s(7), found {call!r:.80}")
    if task.engine is not engine:
        raise OptionError(f"{task.target} is a task of the app {task.engine.name!r}, not of {engine.name!r}")
    if others:
        task = task.using(**others)
    chosen = task.options
    if chosen.delay or chosen.eta_ms is not None or chosen.name or chosen.depends_on or chosen.unique:
        raise OptionError(
            f"{task.target}: delay, eta, name, unique and depends_on are options of one job, not of a schedule"
        )
    body = task.body(step.encoded(engine.settings.max_payload))
    return schedule_of(
        name=name,
        target=task.target,
        queue=task.options.queue,
        body=msgspec.Raw(body),
        priority=task.options.priority,
        tenant=task.options.tenant,
        weight=task.options.weight,
        expires=task.options.expires,
        failure_ttl=task.options.failure_ttl,
        origin=origin,
        **times,
    )


def registering(engine: Engine, schedule: model.Schedule) -> Generator[Call[Any], Any, str]:
    """Register a schedule: 'new', 'changed' or 'same'. One that moved to another queue leaves the old one."""
    queue = schedule.queue
    before: str | None = yield store.home(engine.keys, schedule.name)
    if before != queue:
        yield store.settle_in(engine.keys, schedule.name, queue)
    if before is not None and before != queue:
        yield store.unenroll(engine.keys_of(before), schedule.name)
    yield from engine.list_queue(queue)
    now_ms = yield from engine.now_ms()
    code = ""
    if schedule.origin != "call" and not (yield from _is_doubtful(engine, schedule)):
        code = blake2b(msgspec.json.encode(schedule), digest_size=12).hexdigest()
    change: str = yield store.enroll(engine.keys_of(queue), schedule, next_after(schedule.when, now_ms), code)
    if change == "changed":
        yield from store.stay_suspended(engine.keys_of(queue), schedule, now_ms)
    # Another process may have removed or moved it since the look-up above, as workers of an older version do. In a
    # queue that is not its home it must not fire.
    home: str | None = yield store.home(engine.keys, schedule.name)
    if home != queue:
        yield store.unenroll(engine.keys_of(queue), schedule.name)
    return change


def _is_doubtful(engine: Engine, schedule: model.Schedule) -> Generator[Call[Any], Any, bool]:
    """Whether the stored record has a bad signature: then the definition in code or settings replaces it."""
    if not engine.keyring:
        return False
    for standing in (yield from store.look(engine.keys_of(schedule.queue), [schedule.name])):
        if standing.signature_error:
            log.warning(
                "schedule %s is registered again; its record was refused: %s", schedule.name, standing.signature_error
            )
            return True
    return False


def signing_anew(engine: Engine) -> Generator[Call[Any], Any, int]:
    """Sign records again whose key is not the first of the ring: that key may be dropped before their next tick."""
    count, homes = 0, (yield store.homes(engine.keys))
    for queue in dict.fromkeys(homes.values()):
        keys, names = engine.keys_of(queue), [name for name, home in homes.items() if home == queue]
        for standing in (yield from store.look(keys, names)):
            if not standing.is_signed_by_first and not standing.signature_error:
                yield store.enroll(keys, standing.schedule, standing.due_ms or 0, "")
                count += 1
    return count


def registering_all(engine: Engine) -> Generator[Call[Any], Any, None]:
    """Register what decorators and settings name."""
    if engine.keyring:
        yield from signing_anew(engine)
    for schedule in engine.part(Timetable).named.values():
        yield from registering(engine, schedule)
    wrong: ConfigurationError | None = None
    for name, table in engine.settings.schedules.items():
        try:
            schedule = _of_settings(engine, name, table)
        except (ConfigurationError, PayloadError) as error:  # one faulty schedule must not stop the others
            wrong = ConfigurationError(f"schedule {name!r} of the settings: {error}")
        else:
            yield from registering(engine, schedule)
    if wrong is not None:
        raise wrong


def _of_settings(engine: Engine, name: str, table: Mapping[str, Any]) -> model.Schedule:
    options = {key: value for key, value in table.items() if key not in ("task", "args", "kwargs")}
    task = engine.tasks.get(table["task"])
    if task is None:
        raise ConfigurationError(engine.unknown_task(table["task"]))
    args, kwargs = tuple(table.get("args", ())), dict(table.get("kwargs", {}))
    call: Step[Any, Any] = Step(task, args, kwargs, takes_result=False)
    return described(engine, name, call, options, "settings")


def fire_due(engine: Engine, queue: str, name: str, text: bytes, now_ms: int) -> Generator[Call[Any], Any, int]:
    """Fire the due ticks of a schedule taken by `engine/take_outbox.lua`; the number of jobs queued."""
    due_text, _, record = text.partition(b"\n")
    try:
        schedule = read_schedule(record)
        due_ms = int(due_text)
    except (msgspec.DecodeError, ValueError, OptionError) as error:
        log.error("%s: schedule %s cannot be read: %s", queue, name, error)
        yield store.postpone(engine.keys_of(queue), name, now_ms + _UNREADABLE_MS)
        return 0
    signer = engine.keys_of(queue).signer
    if signer is not None and (wrong := signer.verify_object("schedule", name, record)):
        log.error("schedule %s does not fire, its record is refused: %s. Register it again, or remove it", name, wrong)
        yield store.postpone(engine.keys_of(queue), name, now_ms + _UNREADABLE_MS)
        return 0
    firing = due(schedule, due_ms, now_ms)
    if firing.dropped:
        log.warning("schedule %s: %d ticks were missed and are dropped", name, firing.dropped)
    ids: list[str] | None = yield fire(
        engine, schedule, firing.ticks, due_ms=due_ms, next_ms=firing.next_ms, dropped=firing.dropped
    )
    return len(ids or ())


def fire(
    engine: Engine,
    schedule: model.Schedule,
    ticks: Sequence[int],
    *,
    due_ms: int | None,
    next_ms: int = 0,
    dropped: int = 0,
) -> Call[list[str] | None]:
    """Queue the jobs of ticks, if `due_ms` is the one waited for (None: whatever is)."""
    rows, keys = [], engine.keys_of(schedule.queue)
    for tick_ms in ticks:
        body = bytes(schedule.body)[:-1] + b',"tk":%d' % tick_ms
        if schedule.expires is not None:
            body += b',"x":%d' % (tick_ms + round(schedule.expires * 1000))
        when = str(shifted(tick_ms, schedule)) if schedule.jitter and due_ms is not None else ""
        id = engine.new_id()
        if when:
            body += b',"d":%d' % max(1, int(when) - made_ms(id))
        body = body + b"}" if keys.signer is None else keys.signer.signed("job", id, body + b"}")
        rows.append(store.Tick(tick_ms, NewJob(id, schedule.priority, body, when, schedule.tenant, schedule.weight)))
    return store.fire(
        keys,
        schedule,
        rows,
        due_ms=due_ms,
        next_ms=next_ms,
        dropped=dropped,
        fail_ms=max(1, round(schedule.failure_ttl * 1000)),
    )
