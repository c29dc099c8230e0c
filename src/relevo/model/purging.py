"""What is too old, and what becomes of it: one table of states, age limits and actions, and pure decisions about it.

    queue       older than              becomes
    scheduled   2 h past its due time   dead, `stale_scheduled`
    waiting     24 h                    dead, `stale_waiting`
    ready       24 h                    cancelled, `stale_ready`
    request     24 h past its deadline  expired
    running     1 h past its lease      recovered, as by any worker that comes by
    done        1 h                     removed
    orphaned    24 h since it was seen  removed: a body in no set

    pool        older than              becomes
    pending     2 h                     dead, `stale_pending`
    ready       24 h, `pool` 48 h       moved to completed
    completed   1 h                     removed
    requested   24 h                    moved to expired
    orphaned    24 h                    expired: what is known of an entity in no state

An age that nobody knows is no age: such an entry is counted and left alone. Limits include their border.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from relevo.errors import OptionError
from relevo.model.durations import milliseconds
from relevo.model.ids import looks_like_id, made_ms
from relevo.model.job import Envelope
from relevo.model.nearest import did_you_mean

_HOUR = 3_600_000
#: Says that nothing is ever too old for a state.
NEVER = "never"
#: The field of an entity's metadata that says of which class it is.
CLASS_FIELD = "kind"


class Rule(Struct, frozen=True):
    """What becomes of what is in a state for too long."""

    #: None: nothing is too old for it.
    age_ms: int | None
    then: str
    #: Others for some: for tasks in queues, for what the metadata field `kind` says in pools.
    classes: dict[str, Rule] = {}

    def of(self, class_: str) -> Rule:
        """The rule for one class."""
        return self.classes.get(class_, self)

    @property
    def earliest_ms(self) -> int | None:
        """The shortest limit of all classes: what is younger need not be looked at."""
        ages = [one.age_ms for one in (self, *self.classes.values()) if one.age_ms is not None]
        return min(ages, default=None)


#: The states of a queue, and what may become of what is too old there.
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
    # Two hours late: nobody works on this queue, and what it was to do at a time is of no use at another.
    "scheduled": Rule(2 * _HOUR, "dead"),
    # Longer than a parent may take that somebody still waits for.
    "waiting": Rule(24 * _HOUR, "dead"),
    "ready": Rule(24 * _HOUR, "cancelled"),
    # Workers drop what is past its deadline when they meet it; this is for queues that nobody works on.
    "request": Rule(24 * _HOUR, "expired"),
    # Any living worker would have taken it back within seconds.
    "running": Rule(_HOUR, "recovered"),
    "done": Rule(_HOUR, "removed"),
    "orphaned": Rule(24 * _HOUR, "removed"),
}

#: Pools may have other states, too; these are the ones that have a limit unless somebody says otherwise.
POOL_RULES: dict[str, Rule] = {
    "pending": Rule(2 * _HOUR, "dead"),
    # What was made for somebody is wanted soon or not at all; what is kept in stock may wait longer.
    "ready": Rule(24 * _HOUR, "completed", {"pool": Rule(48 * _HOUR, "completed")}),
    "completed": Rule(_HOUR, "removed"),
    "requested": Rule(24 * _HOUR, "expired"),
    "orphaned": Rule(24 * _HOUR, "expired"),
}

#: Ages that may be given for all queues and pools at once.
_FLAT = tuple(dict.fromkeys((*QUEUE_RULES, *POOL_RULES)))


class Ages(Struct, frozen=True):
    """The whole table, as settings gave it."""

    flat: dict[str, Rule | None] = {}
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
        for state, given in self.flat.items():
            if state in rules and given is not None:
                rules[state] = msgspec.structs.replace(rules[state], age_ms=given.age_ms, classes={})
        for table in (tables.get("*", {}), tables.get(name, {})):
            for state, given in table.items():
                rules[state] = _rule(given, rules.get(state, Rule(None, "dead")), "")
        return rules


def ages_of(given: Any, *, what: str = "purge_ages") -> Ages:
    """Read the table; what is in it that nobody knows is refused with the nearest right name.

    >>> ages_of({"ready": "6h", "queues": {"mails": {"ready": "1h"}}}).of_queue("mails")["ready"]
    Rule(age_ms=3600000, then='cancelled', classes={})
    """
    if not isinstance(given, dict):
        raise OptionError(f"{what}: a table of states and ages is needed, found {given!r:.80}.")
    flat: dict[str, Rule | None] = {}
    for name, value in given.items():
        if name in ("queues", "pools"):
            _check_tables(f"{what}.{name}", value, is_pool=name == "pools")
        elif name not in _FLAT:
            near = did_you_mean(str(name), (*_FLAT, "queues", "pools")) or f": it is none of {', '.join(_FLAT)}"
            raise OptionError(f"{what}: there is no state {name!r}{near}")
        else:
            flat[name] = Rule(_age(value, f"{what}.{name}"), "")
    return Ages(flat, given.get("queues", {}), given.get("pools", {}))


def _check_tables(what: str, given: Any, *, is_pool: bool) -> None:
    if not isinstance(given, dict):
        raise OptionError(f"{what}: a table for each name is needed, found {given!r:.80}.")
    for name, table in given.items():
        if not isinstance(table, dict):
            raise OptionError(f"{what}.{name}: a table of states and ages is needed, found {table!r:.80}.")
        for state, value in table.items():
            where = f"{what}.{name}.{state}"
            if not is_pool and state not in QUEUE_RULES:
                known = ", ".join(QUEUE_RULES)
                raise OptionError(f"{where}: there is no such state{did_you_mean(state, QUEUE_RULES) or f': {known}'}")
            default = (POOL_RULES if is_pool else QUEUE_RULES).get(state, Rule(None, "dead"))
            rule = _rule(value, default, where)
            if not is_pool:
                _check_actions(rule, QUEUE_ACTIONS[state], where)
            elif state == "orphaned":
                _check_actions(rule, ("expired",), where)


def _check_actions(rule: Rule, allowed: Iterable[str], where: str) -> None:
    for one in (rule, *rule.classes.values()):
        if one.then not in allowed:
            known = ", ".join(allowed)
            raise OptionError(f"{where}.then: {one.then!r} cannot be. There is: {known}.")


def _rule(given: Any, default: Rule, where: str) -> Rule:
    """`"24h"`, `"never"`, or `{age = "24h", then = "dead", classes = {"shop.report" = "48h"}}`."""
    if not isinstance(given, dict):
        return msgspec.structs.replace(default, age_ms=_age(given, where), classes={})
    for name in given:
        if name not in ("age", "then", "classes"):
            raise OptionError(f"{where}: unknown name {name!r}{did_you_mean(name, ('age', 'then', 'classes'))}")
    age_ms = _age(given["age"], f"{where}.age") if "age" in given else default.age_ms
    then = given.get("then", default.then)
    if not isinstance(then, str) or not then:
        raise OptionError(f"{where}.then: what becomes of it is a word, found {then!r:.80}.")
    classes = given.get("classes", {})
    if not isinstance(classes, dict):
        raise OptionError(f"{where}.classes: a table of ages is needed, found {classes!r:.80}.")
    own = Rule(age_ms, then)
    return Rule(age_ms, then, {name: _rule(one, own, f"{where}.classes.{name}") for name, one in classes.items()})


def _age(given: Any, where: str) -> int | None:
    return None if given == NEVER else max(1, milliseconds(given, what=where))


# Decisions
class Verdict(Struct, frozen=True):
    """What is to become of an entry that is too old."""

    then: str
    reason: str
    since_ms: int
    limit_ms: int


class Unknown(Struct, frozen=True):
    """Nobody knows how long it has been there, so it is counted and left alone."""


def is_stale(since_ms: int, limit_ms: int, now_ms: int) -> bool:
    """Whether something is there for as long as the limit says, or longer. The scripts decide it so again."""
    return now_ms - since_ms >= limit_ms


def judge(
    rules: Mapping[str, Rule], state: str, class_: str, since_ms: int | None, now_ms: int
) -> Verdict | Unknown | None:
    """What is to become of something that is in a state since then (None: nobody knows); None: it may stay."""
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


def judge_job(
    rules: Mapping[str, Rule], state: str, id: str, score: float, seen: SeenJob, now_ms: int
) -> Verdict | Unknown | None:
    """What is to become of a job in a state of its queue."""
    envelope = seen.envelope
    target = envelope.target if envelope else ""
    if state == "ready" and envelope is not None and envelope.expires_ms is not None:
        late = judge(rules, "request", target, envelope.expires_ms, now_ms)
        if late is not None:
            return late
    if state == "waiting" and envelope is not None and envelope.takes == "reply":
        return None  # a callback has a deadline of its own, which its sender chose
    return judge(rules, state, target, _since(state, id, score, seen), now_ms)


class SeenJob(Struct, frozen=True):
    """What was seen of a job besides where it is."""

    #: None: its body cannot be read.
    envelope: Envelope | None = None
    was_handed_out: bool = False
    #: It stands in the line of a group that has a limit.
    is_in_line: bool = False


def _since(state: str, id: str, score: float, seen: SeenJob) -> int | None:
    match state:
        case "scheduled":
            return int(score) // 1024
        case "ready":
            return ready_since_ms(id, seen)
        case _:
            return int(score)


def ready_since_ms(id: str, seen: SeenJob) -> int | None:
    """Since when a ready job has been waiting for a worker; None: nobody knows.

    The server does not note it, for every enqueue would pay for that. The id tells when the job was made, and its body
    whether it was to be ready later. What was handed out and came back, what waited for others or for a place of its
    group, and events, which can be heard again with their old ids, may be ready since a moment ago.
    """
    envelope = seen.envelope
    if envelope is None or seen.was_handed_out or seen.is_in_line or not looks_like_id(id):
        return None
    if envelope.later_ms == 0 or envelope.takes not in ("", "claim"):
        return None
    if envelope.headers is not None and envelope.headers.intent == "event":
        return None
    return made_ms(id) + (envelope.later_ms or 0)
