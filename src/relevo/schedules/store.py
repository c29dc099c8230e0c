"""Store operations of schedules: register, fire, pause, remove, history.

A schedule lives in the queue of its jobs, so that a tick is fired and its job queued in one step. A hash of the app
says which queue that is.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from relevo.engine.edges import label
from relevo.engine.push import KEEP_MS, NewJob
from relevo.schedules.cron import next_after
from relevo.schedules.schedule import Schedule, read_schedule
from relevo.signing import Signer
from relevo.store.keys import AppKeys, QueueKeys
from relevo.store.plan import Argument, Call

#: Entries of a schedule's history, and how long it lives after the last.
RUNS_MAX = 50
RUNS_MS = 30 * 86_400_000


class Ran(Struct, frozen=True, array_like=True):
    """One entry of a schedule's history."""

    #: The tick; 0 for a run on request.
    tick_ms: int
    at_ms: int
    #: The job it queued; of a skipped tick: the job that was still there.
    job: str
    #: fired, skipped (the one before still lived), or "dropped 7" (missed, and not made up for)
    what: str


class Standing(Struct, frozen=True, kw_only=True):
    """A schedule and how it stands."""

    schedule: Schedule
    #: The tick it waits for.
    due_ms: int | None = None
    paused_ms: int | None = None
    #: When the pause ends by itself; it may have ended. None: it does not.
    until_ms: int | None = None
    #: When code or settings last named it.
    seen_ms: int | None = None
    #: The last job it queued.
    job: str = ""
    fired: int = 0
    skipped: int = 0
    dropped: int = 0
    #: Where records are signed: what is wrong with the signature, and whether it is by the key that signs now.
    signature_error: str = ""
    is_signed_by_first: bool = True


_PARTS = ("due", "paused", "seen", "job", "fired", "skipped", "dropped")


def look(queue: QueueKeys, names: Sequence[str]) -> Generator[Call[Any], Any, list[Standing]]:
    """Schedules of this queue, without those that are missing or unreadable."""
    if not names:
        return []
    texts: list[bytes | None] = yield Call([b"HMGET", queue.key("schedules"), *names])
    fields = [f"{part}:{name}" for name in names for part in _PARTS]
    parts: list[bytes | None] = yield Call([b"HMGET", queue.key("ticks"), *fields])
    found = []
    for i, text in enumerate(texts):
        if text is not None:
            try:
                schedule = read_schedule(text)
            except (msgspec.DecodeError, ValueError):
                continue
            standing = _standing(schedule, parts[i * len(_PARTS) : (i + 1) * len(_PARTS)])
            if queue.signer is not None:
                standing = _checked(queue.signer, standing, names[i], text)
            found.append(standing)
    return found


def _checked(signer: Signer, standing: Standing, name: str, text: bytes) -> Standing:
    error = signer.verify_object("schedule", name, text)
    return msgspec.structs.replace(standing, signature_error=error, is_signed_by_first=signer.is_by_first_key(text))


def _standing(schedule: Schedule, parts: Sequence[bytes | None]) -> Standing:
    due, paused, seen, job, *counts = parts
    fired, skipped, dropped = (int(count or 0) for count in counts)
    since, _, until = (paused or b"").partition(b" ")
    return Standing(
        schedule=msgspec.structs.replace(schedule, paused=paused is not None),
        due_ms=int(due) if due and (paused is None or until) else None,
        paused_ms=int(since) if since else None,
        until_ms=int(until) if until else None,
        seen_ms=int(seen) if seen else None,
        job=(job or b"").decode(),
        fired=fired,
        skipped=skipped,
        dropped=dropped,
    )


def dues(queue: QueueKeys, names: Sequence[str]) -> Call[list[int | None]]:
    """When schedules of this queue are due, of those that there are; None: it is paused."""

    def decode(reply: list[bytes | None]) -> list[int | None]:
        pairs = zip(reply[::2], reply[1::2], strict=True)
        return [None if paused else int(due or 0) for due, paused in pairs if due or paused]

    return Call([b"HMGET", queue.key("ticks"), *(f"{part}:{name}" for name in names for part in _PARTS[:2])], decode)


def homes(keys: AppKeys) -> Call[dict[str, str]]:
    """All schedules of an app, and the queue of each."""

    def decode(reply: list[bytes]) -> dict[str, str]:
        return {reply[i].decode(): reply[i + 1].decode() for i in range(0, len(reply), 2)}

    return Call([b"HGETALL", keys.schedules], decode)


def home(keys: AppKeys, name: str) -> Call[str | None]:
    """The queue of a schedule."""
    return Call([b"HGET", keys.schedules, name], lambda text: text.decode() if text else None)


def settle_in(keys: AppKeys, name: str, queue: str) -> Call[Any]:
    """Note the queue of a schedule."""
    return Call([b"HSET", keys.schedules, name, queue])


def move_out(keys: AppKeys, name: str) -> Call[Any]:
    """Forget the queue of a schedule."""
    return Call([b"HDEL", keys.schedules, name])


def enroll(queue: QueueKeys, schedule: Schedule, due_ms: int, code: str) -> Call[str]:
    """Register or change a schedule: 'new', 'changed' or 'same'. `code`: what code or settings say, in short."""
    script = queue.script("schedules/register_schedule")
    text = _text(queue.signer, schedule)
    args: list[Argument] = [schedule.name, text, msgspec.json.encode(schedule.when), due_ms, code]
    return Call(args, bytes.decode, script, queue.of(script))


def _text(signer: Signer | None, schedule: Schedule) -> bytes:
    text = msgspec.json.encode(msgspec.structs.replace(schedule, paused=False))
    return text if signer is None else signer.signed("schedule", schedule.name, text)


def unenroll(queue: QueueKeys, name: str) -> Call[bool]:
    """Remove a schedule: whether there was one."""
    script = queue.script("schedules/remove_schedule")
    return Call([name], bool, script, queue.of(script))


def suspend(
    queue: QueueKeys, name: str, *, pause: bool, due_ms: int = 0, ends_ms: int = 0, note: bytes = b""
) -> Call[bool | None]:
    """Pause or resume: whether that changed anything; None: there is none.

    `due_ms` is the tick it waits for then, after a pause that ends at `ends_ms` the first one. Without a note that of a
    pause before stays.
    """
    script = queue.script("schedules/pause_schedule")
    args: list[Argument] = [name, int(pause), due_ms, ends_ms, note]
    return Call(args, lambda code: None if code < 0 else bool(code), script, queue.of(script))


def stay_suspended(queue: QueueKeys, schedule: Schedule, now_ms: int) -> Generator[Call[Any], Any, None]:
    """The times of a schedule have changed: if it is paused for a while, it waits for another tick after that."""
    for standing in (yield from look(queue, [schedule.name])):
        if standing.until_ms is not None and standing.until_ms > now_ms:
            due_ms = next_after(schedule.when, standing.until_ms)
            yield suspend(queue, schedule.name, pause=True, due_ms=due_ms, ends_ms=standing.until_ms)


class Tick(Struct, frozen=True):
    """A tick, and the job it queues."""

    tick_ms: int
    job: NewJob


def fire(
    queue: QueueKeys,
    schedule: Schedule,
    ticks: Sequence[Tick],
    *,
    due_ms: int | None,
    next_ms: int = 0,
    dropped: int = 0,
    fail_ms: int,
) -> Call[list[str] | None]:
    """Fire ticks if `due_ms` is the next tick (None: in any case); ids of the jobs. None: another worker fired it."""
    script = queue.script("schedules/fire_ticks")
    args: list[Argument] = [
        schedule.name,
        "" if due_ms is None else due_ms,
        next_ms,
        "allow" if due_ms is None else schedule.overlap,
        dropped,
        label(schedule.queue),
        KEEP_MS,
        fail_ms,
        RUNS_MS,
        RUNS_MAX,
    ]
    for tick in ticks:
        job = tick.job
        args += (tick.tick_ms, job.id, job.priority, job.body, job.when, job.tenant, job.weight)

    def decode(reply: list[bytes]) -> list[str] | None:
        return [id.decode() for id in reply[1:]] if reply[0] == b"fired" else None

    return Call(args, decode, script, queue.of(script), numbered=True, timed=True)


def postpone(queue: QueueKeys, name: str, at_ms: int) -> Call[Any]:
    """Set the time at which the schedule is looked at next."""
    return Call([b"ZADD", queue.key("errands"), b"XX", at_ms, "@" + name])


def history(queue: QueueKeys, name: str, limit: int) -> Call[list[Ran]]:
    """Recent ticks of a schedule, newest first."""
    return Call(
        [b"LRANGE", queue.own("runs", name), 0, limit - 1],
        lambda reply: [msgspec.json.decode(row, type=Ran) for row in reply],
    )
