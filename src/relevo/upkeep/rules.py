"""Purge rules: a table of states, age limits and actions, and the pure decisions based on it.

    queue       older than              becomes
    scheduled   2 h past its due time   dead, `stale_scheduled`
    waiting     24 h                    dead, `stale_waiting`
    ready       24 h                    cancelled, `stale_ready`
    request     24 h past its deadline  expired
    running     1 h past its lease      recovered, as any worker would do
    done        1 h                     removed
    orphaned    24 h since it was seen  removed: data of an id that is in no set

    pool        older than              becomes
    pending     2 h                     dead, `stale_pending`
    ready       24 h, `pool` 48 h       moved to completed
    completed   1 h                     removed
    requested   24 h                    moved to expired
    orphaned    24 h                    expired: data of an entity in no state

Entries of unknown age, and jobs held back by a pause or a breaker, are counted and left alone. A scheduled job that is
due is judged as a ready one while the queue is served. An entry exactly as old as its limit is too old.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, assert_never

import msgspec
from msgspec import Struct

from relevo.engine.ids import looks_like_id, made_ms
from relevo.engine.job import Envelope
from relevo.engine.pauses import Pause
from relevo.errors import OptionError
from relevo.limits.limit import QUEUE, TASK, TENANT
from relevo.text.durations import milliseconds
from relevo.text.names import state_word
from relevo.text.nearest import did_you_mean

_HOUR = 3_600_000
#: The age that stands for "no limit".
NEVER = "never"
#: The field of an entity's metadata that holds its class.
CLASS_FIELD = "kind"


class Rule(Struct, frozen=True):
    """The age limit of a state, and the action for older entries."""

    #: None: no limit.
    age_ms: int | None
    then: str
    #: Rules for classes: the task in a queue, the metadata field `kind` in a pool.
    classes: dict[str, Rule] = {}

    def of(self, class_: str) -> Rule:
        """The rule for one class."""
        return self.classes.get(class_, self)

    @property
    def earliest_ms(self) -> int | None:
        """The shortest limit of all classes; younger entries need no check."""
        ages = [one.age_ms for one in (self, *self.classes.values()) if one.age_ms is not None]
        return min(ages, default=None)


#: The states of a queue, and the actions allowed for each.
QUEUE_ACTIONS: dict[str, tuple[str, ...]] = {
    "scheduled": ("dead", "cancelled"),
    "waiting": ("dead", "cancelled"),
    "ready": ("cancelled", "dead"),
    "request": ("expired",),
    "running": ("recovered",),
    "done": ("removed",),
    "orphaned": ("removed",),
}

QUEUE_RULES: dict[str, Rule] = {
    # Two hours late on a queue without workers: work planned for a time is useless at another.
    "scheduled": Rule(2 * _HOUR, "dead"),
    # Longer than a parent job may reasonably take.
    "waiting": Rule(24 * _HOUR, "dead"),
    "ready": Rule(24 * _HOUR, "cancelled"),
    # Workers drop expired requests when they claim them; this rule is for queues without workers.
    "request": Rule(24 * _HOUR, "expired"),
    # Any live worker would have recovered it within seconds.
    "running": Rule(_HOUR, "recovered"),
    "done": Rule(_HOUR, "removed"),
    "orphaned": Rule(24 * _HOUR, "removed"),
}

#: The states of pools with a default limit; pools may have other states, too.
POOL_RULES: dict[str, Rule] = {
    "pending": Rule(2 * _HOUR, "dead"),
    # Entities made for one request are needed soon or never; stock may wait longer.
    "ready": Rule(24 * _HOUR, "completed", {"pool": Rule(48 * _HOUR, "completed")}),
    "completed": Rule(_HOUR, "removed"),
    "requested": Rule(24 * _HOUR, "expired"),
    "orphaned": Rule(24 * _HOUR, "expired"),
}

#: Names of ages in other systems, and the state each one stands for.
AGES_ELSEWHERE = {
    "max_pending_age": "pending",
    "max_ready_age": "ready",
    "max_completed_age": "completed",
    "max_orphaned_age": "orphaned",
    "max_request_age": "requested",
}

#: Ages that may be given for all queues and pools at once.
_FLAT = tuple(dict.fromkeys((*QUEUE_RULES, *POOL_RULES)))


class Ages(Struct, frozen=True):
    """The whole table, as given in the settings."""

    #: Ages for all queues and pools at once; None: no limit.
    flat: dict[str, int | None] = {}
    queues: dict[str, dict[str, Any]] = {}
    pools: dict[str, dict[str, Any]] = {}

    def of_queue(self, name: str) -> dict[str, Rule]:
        """The rules of one queue: its own, else those of all queues, else the defaults."""
        return self._of(QUEUE_RULES, self.queues, name)

    def of_pool(self, name: str) -> dict[str, Rule]:
        """The rules of one pool."""
        return self._of(POOL_RULES, self.pools, name)

    def _of(self, defaults: Mapping[str, Rule], tables: dict[str, dict[str, Any]], name: str) -> dict[str, Rule]:
        rules = dict(defaults)
        for state, age_ms in self.flat.items():
            if state in rules:
                rules[state] = msgspec.structs.replace(rules[state], age_ms=age_ms, classes={})
        for table in (tables.get("*", {}), tables.get(name, {})):
            for state, given in table.items():
                rules[state] = _rule(given, rules.get(state, Rule(None, "dead")), "")
        return rules


def ages_of(given: Any, *, what: str = "purge_ages") -> Ages:
    """Read the table; refuses unknown names and suggests the nearest known one.

    >>> ages_of({"ready": "6h", "queues": {"mails": {"ready": "1h"}}}).of_queue("mails")["ready"]
    Rule(age_ms=3600000, then='cancelled', classes={})
    """
    if not isinstance(given, dict):
        raise OptionError(f"{what}: a table of states and ages is needed, found {given!r:.80}.")
    flat: dict[str, int | None] = {}
    for name, value in given.items():
        if name in ("queues", "pools"):
            _check_tables(f"{what}.{name}", value, is_pool=name == "pools")
        elif name not in _FLAT:
            near = _meant(name, (*_FLAT, "queues", "pools")) or f": it is none of {', '.join(_FLAT)}"
            raise OptionError(f"{what}: there is no state {name!r}{near}")
        else:
            flat[name] = _age(value, f"{what}.{name}")
    return Ages(flat, given.get("queues", {}), given.get("pools", {}))


def _check_tables(what: str, given: Any, *, is_pool: bool) -> None:
    if not isinstance(given, dict):
        raise OptionError(f"{what}: a table for each name is needed, found {given!r:.80}.")
    for name, table in given.items():
        if not isinstance(table, dict):
            raise OptionError(f"{what}.{name}: a table of states and ages is needed, found {table!r:.80}.")
        for state, value in table.items():
            where = f"{what}.{name}.{state}"
            if state in AGES_ELSEWHERE if is_pool else state not in QUEUE_RULES:
                near = _meant(state, POOL_RULES if is_pool else QUEUE_RULES) or f": {', '.join(QUEUE_RULES)}"
                raise OptionError(f"{where}: there is no such state{near}")
            default = (POOL_RULES if is_pool else QUEUE_RULES).get(state, Rule(None, "dead"))
            rule = _rule(value, default, where)
            if state == "orphaned" and rule.classes:
                raise OptionError(f"{where}.classes: orphaned entries have no class")
            if not is_pool:
                _check_actions(rule, QUEUE_ACTIONS[state], where)
            elif state == "orphaned":
                _check_actions(rule, ("expired",), where)
            else:
                for word in (state, *(one.then for one in (rule, *rule.classes.values()))):
                    state_word(word, what=where)
                if any(one.then == state for one in (rule, *rule.classes.values())):
                    raise OptionError(f"{where}.then: it is in that state already")


def _meant(name: Any, known: Collection[str]) -> str:
    """The end of an error message: the name that was probably meant, if there is one."""
    ours = AGES_ELSEWHERE.get(name)
    return f", did you mean {ours!r}?" if ours in known else did_you_mean(str(name), known)


def check_declared(given: Mapping[str, Any], pool: str, states: Sequence[str]) -> None:
    """Refuse rules for states that are not among the pool's declared states."""
    for state, value in given.get("pools", {}).get(pool, {}).items():
        if state == "orphaned":
            continue
        table = value if isinstance(value, dict) else {}
        rules = [one for one in (table, *table.get("classes", {}).values()) if isinstance(one, dict)]
        for word in (state, *(one["then"] for one in rules if "then" in one)):
            if word not in (*states, "dead", "removed"):
                near = did_you_mean(word, states) or f": {', '.join(states)}"
                raise OptionError(f"purge_ages.pools.{pool}.{state}: the pool has no state {word!r}{near}")


def _check_actions(rule: Rule, allowed: Iterable[str], where: str) -> None:
    for one in (rule, *rule.classes.values()):
        if one.then not in allowed:
            known = ", ".join(allowed)
            raise OptionError(f"{where}.then: {one.then!r} cannot be. There is: {known}.")


def _rule(given: Any, default: Rule, where: str, known: Sequence[str] = ("age", "then", "classes")) -> Rule:
    """`"24h"`, `"never"`, or `{age = "24h", then = "dead", classes = {"shop.report" = "48h"}}`."""
    if not isinstance(given, dict):
        return msgspec.structs.replace(default, age_ms=_age(given, where), classes={})
    for name in given:
        if name not in known:
            raise OptionError(f"{where}: unknown name {name!r}{did_you_mean(name, known)}")
    age_ms = _age(given["age"], f"{where}.age") if "age" in given else default.age_ms
    then = given.get("then", default.then)
    if not isinstance(then, str) or not then:
        raise OptionError(f"{where}.then: what becomes of it is a word, found {then!r:.80}.")
    classes = given.get("classes", {})
    if not isinstance(classes, dict):
        raise OptionError(f"{where}.classes: a table of ages is needed, found {classes!r:.80}.")
    own = Rule(age_ms, then)
    of_classes = {name: _rule(one, own, f"{where}.classes.{name}", ("age", "then")) for name, one in classes.items()}
    return Rule(age_ms, then, of_classes)


def _age(given: Any, where: str) -> int | None:
    if given == NEVER:
        return None
    if isinstance(given, dict):
        raise OptionError(f'{where}: an age such as "24h" is needed; a table may stand under queues."*" and pools."*"')
    age_ms = milliseconds(given, what=where)
    if not age_ms:
        raise OptionError(f'{where}: everything is that old; "never" is no limit')
    return age_ms


# Decisions
class Verdict(Struct, frozen=True):
    """The action for an entry that is too old."""

    then: str
    reason: str
    since_ms: int
    limit_ms: int


class Unknown(Struct, frozen=True):
    """The age of the entry is unknown, so it is counted and left alone."""


class HeldBack(Struct, frozen=True):
    """Too old, but held back by a pause or a breaker: it is counted and left alone."""

    why: str


class Standing(Struct, frozen=True):
    """Facts about a queue besides its jobs."""

    #: A live worker serves it, or a job of it is running.
    is_served: bool = False
    #: Descriptions of what holds its jobs back, by the names of `model.limits.name_of`.
    holds: dict[str, str] = {}
    #: When holds that have ended were last known to be in effect, by the same names.
    held_until_ms: dict[str, int] = {}

    def holds_back(self, envelope: Envelope | None) -> str | None:
        """What holds a job back; None: nothing does."""
        return next((self.holds[name] for name in _holders(envelope) if name in self.holds), None)

    def free_since_ms(self, envelope: Envelope | None) -> int:
        """Since when nothing is known to hold the job back; 0: no hold is known."""
        return max(self.held_until_ms.get(name, 0) for name in _holders(envelope))


def _holders(envelope: Envelope | None) -> list[str]:
    """Names of everything that may hold a job back."""
    return [QUEUE] if envelope is None else [QUEUE, TENANT + (envelope.tenant or ""), TASK + envelope.target]


def standing_of(pauses: Iterable[Pause], held_until_ms: dict[str, int], *, is_served: bool) -> Standing:
    """The standing of a queue with these current and earlier pauses."""
    holds: dict[str, str] = {}
    for one in pauses:
        match one.kind:
            case "queue":
                holds[QUEUE] = "the queue is paused"
            case "tenant":
                holds[TENANT + one.name] = f"tenant {one.name} is paused"
            case "task":
                holds[TASK + one.name] = f"task {one.name} is paused"
            case "breaker":
                holds.setdefault(TASK + one.name, f"the breaker of task {one.name} is open")
            case "schedule":  # its existing jobs still run
                pass
            case _:
                assert_never(one.kind)
    return Standing(is_served, holds, held_until_ms)


def is_stale(since_ms: int, limit_ms: int, now_ms: int) -> bool:
    """Whether an entry has reached its age limit. The scripts repeat this check."""
    return now_ms - since_ms >= limit_ms


def judge(
    rules: Mapping[str, Rule], state: str, class_: str, since_ms: int | None, now_ms: int
) -> Verdict | Unknown | None:
    """The action for an entry that entered its state at `since_ms` (None: unknown); None: it may stay."""
    rule = rules.get(state)
    if rule is None:
        return None
    rule = rule.of(class_)
    if rule.age_ms is None:
        return None
    if since_ms is None:
        return Unknown()
    if not is_stale(since_ms, rule.age_ms, now_ms):
        return None
    return Verdict(rule.then, f"stale_{state}", since_ms, rule.age_ms)


_ALONE = Standing()
#: States in which a job may be held back from starting.
_HELD_BACK = ("scheduled", "waiting", "ready")


def judge_job(
    rules: Mapping[str, Rule],
    state: str,
    id: str,
    score: float,
    seen: SeenJob,
    now_ms: int,
    standing: Standing = _ALONE,
) -> Verdict | Unknown | HeldBack | None:
    """The action for a job in a state of its queue; None: it may stay."""
    envelope = seen.envelope
    target = envelope.target if envelope else seen.task
    rule = rule_of(state, standing)
    if rule == "ready" and envelope is not None and envelope.expires_ms is not None:
        late = judge(rules, "request", target, envelope.expires_ms, now_ms)
        if late is not None:
            return late
    if state == "waiting" and envelope is not None and envelope.takes == "reply":
        return None  # a callback has its own deadline, set by the sender
    since_ms, why = _since(state, id, score, seen), None
    if state in _HELD_BACK:
        why = standing.holds_back(envelope)
        if why is None and since_ms is not None:
            since_ms = max(since_ms, standing.free_since_ms(envelope))
    verdict = judge(rules, rule, target, since_ms, now_ms)
    return HeldBack(why) if why is not None and isinstance(verdict, Verdict) else verdict


def rule_of(state: str, standing: Standing) -> str:
    """The row of the table for jobs in a state: busy workers leave due jobs in `scheduled`."""
    return "ready" if state == "scheduled" and standing.is_served else state


class SeenJob(Struct, frozen=True):
    """The data read of a job besides its state."""

    #: None: its body cannot be read.
    envelope: Envelope | None = None
    was_handed_out: bool = False
    #: It is in the line of a tenant with a limit.
    is_in_line: bool = False
    #: The task of a done job, whose body is no longer stored.
    task: str = ""


def _since(state: str, id: str, score: float, seen: SeenJob) -> int | None:
    match state:
        case "scheduled":
            return int(score) // 1024
        case "ready":
            return ready_since_ms(id, seen)
        case _:
            return int(score)


def ready_since_ms(id: str, seen: SeenJob) -> int | None:
    """Since when a ready job has been waiting for a worker; None: unknown.

    The server does not store it, since every enqueue would pay for it. The id holds the time of creation, and the body
    the delay until it was due. Jobs that were handed out before, depended on others or waited for a slot of their
    tenant, and events, which catch-up delivers again under their old ids, may have become ready just now.
    """
    envelope = seen.envelope
    if envelope is None or seen.was_handed_out or seen.is_in_line or not looks_like_id(id):
        return None
    if envelope.later_ms == 0 or envelope.takes not in ("", "claim"):
        return None
    if envelope.headers is not None and envelope.headers.intent == "event":
        return None
    return made_ms(id) + (envelope.later_ms or 0)
