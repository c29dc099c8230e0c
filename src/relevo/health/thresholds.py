"""The limits between healthy, degraded and unhealthy, for all queues and for each.

A number at its limit is on the worse side: 100 dead letters are degraded if `dead_warning` is 100. 0: not judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from relevo.errors import OptionError
from relevo.text.durations import LONGEST, seconds, spoken
from relevo.text.names import is_pool_name, queue_address
from relevo.text.nearest import did_you_mean


class Limits(Struct, frozen=True, kw_only=True):
    """Health limits of a queue. Durations are seconds."""

    # Ready jobs that do not run yet. Not judged by default: thousands that are done in seconds are ordinary load, and
    # `slo`, `clear_warning` and ages say more. The second is twice the first if only that is set.
    ready_max: int = 0
    ready_critical: int = 0
    # Jobs that wait for other jobs, or are parked by a limit, a pause or a breaker; as above.
    waiting_max: int = 0
    waiting_critical: int = 0
    # Seconds until the ready jobs are done at the present rate, once the first has waited for five minutes: a backlog
    # of hours needs more workers, one of a day can hardly be meant.
    clear_warning: float = 3_600.0
    clear_critical: float = 86_400.0
    # Dead letters: a few are normal, a hundred need attention.
    dead_warning: int = 100
    dead_critical: int = 1_000
    # A job ready, overdue or running for this long is stuck: far longer than any job should take.
    stuck_age: float = 7_200.0
    # A job that waits for others for this long is stuck, too: workflows may take hours.
    waiting_age: float = 86_400.0
    stuck_warning: int = 10
    stuck_critical: int = 50
    # Target for the time from due to start; none by default, since it depends on the queue.
    slo: float = 0.0
    # 0: four times the target.
    slo_critical: float = 0.0
    # The same for tasks, by name, in whichever queue they are; unhealthy at four times the target.
    task_slo: dict[str, float] = {}
    # Jobs are due and all slots for the queue are taken by jobs that have not ended for so long.
    full_age: float = 60.0
    # Jobs are due and no worker serves the queue: degraded at once, unhealthy after this time, which is more than a
    # restart takes.
    unserved_age: float = 60.0
    # Workers of the app lost in the last 15 minutes (they stopped reporting without a shutdown).
    lost_workers: int = 1
    # Per cent of the server's memory limit: at the first there is time to act, at the second it soon refuses new jobs.
    memory_warning: int = 90
    memory_critical: int = 98

    @property
    def stuck_ms(self) -> int:
        """`stuck_age` for the store; the longest duration if it is not judged."""
        return round((self.stuck_age or LONGEST) * 1000)

    @property
    def waiting_ms(self) -> int:
        """`waiting_age` for the store."""
        return round((self.waiting_age or LONGEST) * 1000)


#: What differs for pools: entities in stock cost money, and many that are pending mean that none is made.
OF_POOLS = {"ready_max": 500, "waiting_max": 100}
_DURATIONS = {
    "stuck_age", "waiting_age", "slo", "slo_critical", "unserved_age", "clear_warning", "clear_critical", "full_age",
}  # fmt: skip
#: Limits of the app, not of one queue.
_OF_THE_APP = {"lost_workers", "memory_warning", "memory_critical", "task_slo"}
#: Lower and upper limit.
_PAIRS = (
    ("ready_max", "ready_critical"),
    ("waiting_max", "waiting_critical"),
    ("dead_warning", "dead_critical"),
    ("stuck_warning", "stuck_critical"),
    ("clear_warning", "clear_critical"),
    ("slo", "slo_critical"),
    ("memory_warning", "memory_critical"),
)
NAMES = Limits.__struct_fields__
#: Names of the same limits in other systems, for suggestions in error messages.
ELSEWHERE = {
    "pending_queue_max": "waiting_max",
    "ready_queue_max": "ready_max",
    "dlq_max_warning": "dead_warning",
    "dlq_max_critical": "dead_critical",
    "stuck_vm_age_threshold": "stuck_age",
    "stuck_vm_max_warning": "stuck_warning",
    "stuck_vm_max_critical": "stuck_critical",
}


def limits_of(table: Mapping[str, Any], queue: str) -> Limits:
    """The limits of a queue or a pool: its own table, else those for all, else the defaults."""
    common = {name: value for name, value in table.items() if name in NAMES}
    found = {**(OF_POOLS if is_pool_name(queue) else {}), **common, **table.get(queue, {})}
    for lower, upper in (("ready_max", "ready_critical"), ("waiting_max", "waiting_critical")):
        if lower in found:
            found.setdefault(upper, found[lower] * 2)
    return Limits(**found)


def read_limits(what: str, given: Any) -> dict[str, Any]:
    """Check a table of limits: those for all queues, and a table for each queue that has its own."""
    if not isinstance(given, dict):
        raise OptionError(f"{what}: a table of limits is needed, found {given!r:.80}.")
    found: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, dict) and name not in NAMES:
            _check_queue(what, name)
            found[name] = {key: _read(f"{what}.{name}", key, one, of_a_queue=True) for key, one in value.items()}
        else:
            found[name] = _read(what, name, value)
    _check_order(what, limits_of(found, ""))
    for name, value in found.items():
        if isinstance(value, dict):
            _check_order(f"{what}.{name}", limits_of(found, name))
    return found


def _check_queue(what: str, name: Any) -> None:
    try:
        queue_address("", "", "app", name)
    except OptionError as error:
        raise OptionError(f"{what}.{name}: a table is for the queue of that name: {error}") from error


def _read(where: str, name: Any, given: Any, *, of_a_queue: bool = False) -> Any:
    if name not in NAMES:
        meant = f", did you mean {ELSEWHERE[name]!r}?" if name in ELSEWHERE else did_you_mean(str(name), NAMES)
        hint = meant or f". There are: {', '.join(NAMES)}; and a table for a queue."
        raise OptionError(f"{where}: unknown limit {name!r}{hint}")
    if of_a_queue and name in _OF_THE_APP:
        raise OptionError(f"{where}.{name}: that is for the whole app; write it under [{where.partition('.')[0]}].")
    if name == "task_slo":
        return _task_slo(f"{where}.{name}", given)
    if name in _DURATIONS:
        return seconds(given, what=f"{where}.{name}")
    if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given <= 2**53:
        raise OptionError(f"{where}.{name}: a whole number is needed, 0 for no limit, found {given!r:.80}.")
    return given


def _task_slo(where: str, given: Any) -> dict[str, float]:
    if not isinstance(given, dict):
        raise OptionError(
            f'{where}: a target for each task is needed, such as "shop.mail" = "30s", found {given!r:.80}.'
        )
    return {str(task): seconds(target, what=f"{where}.{task}") for task, target in given.items()}


def _check_order(where: str, limits: Limits) -> None:
    for lower, upper in _PAIRS:
        low, high = getattr(limits, lower), getattr(limits, upper)
        if low and high and high < low:
            shown = (spoken(low), spoken(high)) if lower in _DURATIONS else (f"{low:,}", f"{high:,}")
            raise OptionError(f"{where}: {upper} ({shown[1]}) is below {lower} ({shown[0]}): give both, in that order.")
