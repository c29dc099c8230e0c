"""Draws `relevo top`: queues, workers, running jobs and failures, as much of each as fits on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from relevo.cli.screen import Screen, away, mebibytes, plural
from relevo.cli.top.look import JobLook, Look, Pace, QueueLook, together
from relevo.text.durations import spoken

#: Eight heights, for a line of bars.
BARS = "▁▂▃▄▅▆▇█"
#: Lines drawn where the height of the screen is unknown.
ELSEWHERE = 60
#: What a narrow screen leaves out, in this order. An id is of use only as a whole; the message of an error matters more
#: than its kind.
_QUEUES_GIVE_WAY = (("scheduled", 0), ("waiting", 0), ("in/s", 0), ("queue", 8))
_WORKERS_GIVE_WAY = (
    ("queues", 12),
    ("process", 0),
    ("host", 8),
    ("since", 0),
    ("failed", 0),
    ("queues", 0),
    ("host", 0),
)
_RUNNING_GIVES_WAY = (("task", 16), ("worker", 0), ("queue", 8), ("task", 10))
_FAILURES_GIVE_WAY = (
    ("error", 40),
    ("reason", 0),
    ("error", 20),
    ("queue", 8),
    ("task", 12),
    ("ended", 0),
    ("error", 8),
)


def draw(
    screen: Screen, look: Look, found: Mapping[str, Pace] | None, went: Sequence[float], *, height: int = ELSEWHERE
) -> None:
    """Draw one look, with its rates (if there was a look before) and their recent history."""
    _head(screen, look, found, went)
    if look.warning:
        screen.line(f"\nwarning: {look.warning}", "yellow")
        return
    room = _shares(
        height - 4, [len(look.queues), len(look.workers), len(look.running), len(look.failures)], least=[3, 1, 2, 2]
    )
    _queues(screen, look.queues, found or {}, room[0])
    _workers(screen, look, room[1])
    _running(screen, look, room[2])
    _failures(screen, look.failures, room[3])


def _head(screen: Screen, look: Look, found: Mapping[str, Pace] | None, went: Sequence[float]) -> None:
    screen.line(
        f"relevo top   app {look.app} in {look.env}   {look.server}, {mebibytes(look.used_memory)}, "
        f"{plural(look.clients, 'client')}",
        "bold",
    )
    if found is not None:
        all_of_it = together(found)
        enqueued, done, failed = _rates(all_of_it)
        screen.line(
            f"{enqueued} enqueued, {done} done, {failed} failed a second   {bars(went)}".rstrip(),
            "red" if all_of_it.failed else "green" if all_of_it.done else "",
        )
    else:
        screen.line("looking …", "dim")


def _shares(lines: int, wanted: Sequence[int], *, least: Sequence[int]) -> list[int]:
    """Rows for each table, of so many lines in all: each gets its least, and the first ones get the rest."""
    left = lines - 3 * len(wanted)  # a heading, the names of columns, an empty line
    given = [min(some, few) for some, few in zip(wanted, least, strict=True)]
    left -= sum(given)
    for i, some in enumerate(wanted):
        more = max(0, min(some - given[i], left))
        given[i] += more
        left -= more
    return given


def _queues(screen: Screen, looks: Sequence[QueueLook], found: Mapping[str, Pace], most: int) -> None:
    rows = sorted(looks, key=lambda one: (-(one.stats.ready + one.stats.running), -one.stats.living, one.stats.name))
    _title(screen, "queues", len(rows), most)
    if not rows:
        return
    # On a narrow screen, empty columns go first.
    empty = [name for name in ("waiting", "scheduled", "dead") if not any(getattr(one.stats, name) for one in rows)]
    screen.table(
        ["queue", "ready", "running", "scheduled", "waiting", "dead", "in/s", "done/s", "failed/s", "oldest", ""],
        [
            (
                one.stats.name,
                one.stats.ready,
                one.stats.running,
                one.stats.scheduled,
                one.stats.waiting,
                one.stats.dead,
                *_rates(found.get(one.stats.name)),
                None if one.oldest_age_ms is None else spoken(one.oldest_age_ms // 1000),
                "paused" if one.stats.paused else "",
            )
            for one in rows[:most]
        ],
        gives_way=[*((name, 0) for name in empty), ("queue", 14), *_QUEUES_GIVE_WAY],
    )


def _rates(pace: Pace | None) -> tuple[str, str, str]:
    return ("-", "-", "-") if pace is None else (_rate(pace.enqueued), _rate(pace.done), _rate(pace.failed))


def _workers(screen: Screen, look: Look, most: int) -> None:
    rows, lost = look.workers, len(look.lost_workers)
    _title(screen, "workers", len(rows), most)
    if lost:
        screen.line(f"{plural(lost, 'worker')} lost in the last 15 minutes", "bold red")
    if rows:
        screen.table(
            ["worker", "host", "process", "load", "done", "failed", "queues", "since"],
            [
                (
                    one.id,
                    one.host,
                    str(one.pid),
                    f"{one.running}/{one.concurrency}",
                    one.done,
                    one.failed,
                    ", ".join(one.queues),
                    away(one.started_ms),
                )
                for one in sorted(rows, key=lambda one: -one.running)[:most]
            ],
            gives_way=_WORKERS_GIVE_WAY,
        )


def _running(screen: Screen, look: Look, most: int) -> None:
    is_all = look.running_looked_at == look.running_in_all
    which = "first" if is_all else f"of {look.running_looked_at:,} looked at"
    _title(screen, f"running, the longest {which}", look.running_in_all, min(most, len(look.running)))
    if look.running:
        screen.table(
            ["job", "queue", "task", "worker", "for"],
            [
                (job.id, job.queue, job.task, job.worker, _since(job.started_ms, look.now_ms))
                for job in look.running[:most]
            ],
            gives_way=_RUNNING_GIVES_WAY,
        )


def _failures(screen: Screen, failures: Sequence[JobLook], most: int) -> None:
    _title(screen, "dead letters, the newest first", len(failures), most)
    if failures:
        screen.table(
            ["job", "queue", "task", "ended", "reason", "error"],
            [(job.id, job.queue, job.task, away(job.ended_ms), job.reason, job.error) for job in failures[:most]],
            gives_way=_FAILURES_GIVE_WAY,
        )


def _title(screen: Screen, text: str, there: int, shown: int) -> None:
    more = f" ({shown} of {there:,})" if there > shown else "" if there else ": none"
    screen.line(f"\n{text}{more}", "bold cyan")


def _since(ms: int | None, now_ms: int) -> str:
    return "-" if ms is None else f"{max(0, now_ms - ms) / 1000:,.1f} s"


def _rate(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 or not number else f"{number:.1f}"


def bars(values: Sequence[float]) -> str:
    """Numbers as a line of bars, the largest with the full height."""
    most = max(values, default=0.0)
    if most <= 0:
        return ""
    return "".join(BARS[min(7, int(value / most * 7.999))] for value in values)
