"""The table of the purge and its decisions, on every border."""

from __future__ import annotations

from typing import Any

import pytest

from relevo import Relevo
from relevo.engine.ids import made_ms
from relevo.engine.job import Envelope
from relevo.engine.message import Headers
from relevo.errors import OptionError, SettingsError
from relevo.settings import Settings
from relevo.upkeep.rules import (
    POOL_RULES,
    QUEUE_ACTIONS,
    QUEUE_RULES,
    Rule,
    SeenJob,
    Unknown,
    Verdict,
    ages_of,
    is_stale,
    judge,
    judge_job,
    ready_since_ms,
)

HOUR = 3_600_000
ID = "01k9q4w2zhq3mf7d0a2f"
MADE = made_ms(ID)
NOW = MADE + 100 * HOUR


def test_defaults_are_those_of_the_seed() -> None:
    """In seconds: 7200, 86400 (48 h for the pool's own), 3600, 86400, 86400."""
    pool, queue = ages_of({}).of_pool("vms"), ages_of({}).of_queue("mails")
    assert (pool["ready"].of("on_demand").age_ms, pool["ready"].of("pool").age_ms) == (24 * HOUR, 48 * HOUR)
    of_pool = {"pending": 2, "completed": 1, "orphaned": 24, "requested": 24}
    assert {state: pool[state].age_ms for state in of_pool} == {state: age * HOUR for state, age in of_pool.items()}
    of_queue = {"scheduled": 2, "ready": 24, "done": 1, "orphaned": 24, "request": 24}
    assert {state: queue[state].age_ms for state in of_queue} == {state: age * HOUR for state, age in of_queue.items()}


def test_each_state_has_one_action() -> None:
    pool = "pending:dead ready:completed completed:removed requested:expired orphaned:expired"
    queue = (
        "scheduled:dead waiting:dead ready:cancelled request:expired running:recovered done:removed orphaned:removed"
    )
    for rules, expected in ((POOL_RULES, pool), (QUEUE_RULES, queue)):
        assert " ".join(f"{state}:{rule.then}" for state, rule in rules.items()) == expected
    assert all(QUEUE_RULES[state].then == actions[0] for state, actions in QUEUE_ACTIONS.items())


@pytest.mark.parametrize(
    ("age", "limit", "stale"), [(0, 1, False), (99, 100, False), (100, 100, True), (101, 100, True), (-5, 1, False)]
)
def test_limit_includes_its_border(age: int, limit: int, stale: bool) -> None:
    assert is_stale(1_000_000 - age, limit, 1_000_000) is stale


@pytest.mark.parametrize("table", ["queue", "pool"])
def test_every_state_has_a_border(table: str) -> None:
    """One millisecond younger stays, at the limit it goes, for the reason of its state."""
    rules = QUEUE_RULES if table == "queue" else POOL_RULES
    for state, rule in rules.items():
        for class_, own in (("", rule), *rule.classes.items()):
            assert own.age_ms is not None
            assert judge(rules, state, class_, NOW - own.age_ms + 1, NOW) is None
            found = judge(rules, state, class_, NOW - own.age_ms, NOW)
            assert found == Verdict(own.then, f"stale_{state}", NOW - own.age_ms, own.age_ms)


def test_class_has_a_limit_and_an_action_of_its_own() -> None:
    rules = {"ready": Rule(24 * HOUR, "cancelled", {"shop.report": Rule(48 * HOUR, "dead")})}
    since = NOW - 30 * HOUR
    assert judge(rules, "ready", "shop.mail", since, NOW) == Verdict("cancelled", "stale_ready", since, 24 * HOUR)
    assert judge(rules, "ready", "shop.report", since, NOW) is None
    since = NOW - 48 * HOUR
    assert judge(rules, "ready", "shop.report", since, NOW) == Verdict("dead", "stale_ready", since, 48 * HOUR)
    assert rules["ready"].earliest_ms == 24 * HOUR


def test_without_an_age_or_a_limit_nothing_is_purged() -> None:
    assert judge(QUEUE_RULES, "ready", "", None, NOW) == Unknown(), "counted"
    assert judge({"ready": Rule(None, "dead")}, "ready", "", None, NOW) is None
    assert judge({"ready": Rule(None, "dead")}, "ready", "", 0, NOW) is None
    assert judge(POOL_RULES, "running", "", 0, NOW) is None


# since when a job is where it is


def seen(envelope: Envelope | None = None, **more: Any) -> SeenJob:
    return SeenJob(envelope or Envelope("shop.mail"), **more)


def test_ready_job_waits_since_it_was_made_or_due() -> None:
    assert ready_since_ms(ID, seen()) == MADE
    assert ready_since_ms(ID, seen(Envelope("x", later_ms=HOUR))) == MADE + HOUR
    assert ready_since_ms(ID, seen(Envelope("x", takes="claim"))) == MADE


@pytest.mark.parametrize(
    "unknown",
    [
        SeenJob(None),
        seen(was_handed_out=True),
        seen(is_in_line=True),
        seen(Envelope("x", later_ms=0)),
        seen(Envelope("x", takes="list")),
        seen(Envelope("x", takes="reply")),
        seen(Envelope("x", headers=Headers(intent="event"))),
    ],
    ids=["unreadable", "handed out", "in line", "waited", "takes results", "callback", "event"],
)
def test_the_age_of_a_ready_job_that_was_in_another_state_is_unknown(unknown: SeenJob) -> None:
    assert ready_since_ms(ID, unknown) is None
    assert judge_job(QUEUE_RULES, "ready", ID, 1.0, unknown, NOW) == Unknown()


@pytest.mark.parametrize("id", ["mine", "", "0" * 19, "U" * 20])
def test_a_foreign_id_has_no_time(id: str) -> None:
    assert ready_since_ms(id, seen()) is None


def test_scheduled_job_is_as_old_as_it_is_late() -> None:
    """A job for next month is not old, whenever it was made."""
    due = NOW - 2 * HOUR
    assert judge_job(QUEUE_RULES, "scheduled", ID, float((due + 1) * 1024 + 1023), seen(), NOW) is None
    late = judge_job(QUEUE_RULES, "scheduled", ID, float(due * 1024 + 1023), seen(), NOW)
    assert late == Verdict("dead", "stale_scheduled", due, 2 * HOUR)


def test_request_expires_only_past_its_deadline() -> None:
    """By then also when it is not known since when it is ready."""
    for past, stale in ((24 * HOUR - 1, False), (24 * HOUR, True)):
        envelope = Envelope("a.b", expires_ms=NOW - past, headers=Headers(intent="request"))
        found = judge_job(QUEUE_RULES, "ready", ID, 1.0, seen(envelope, was_handed_out=True), NOW)
        assert found == (Verdict("expired", "stale_request", NOW - past, 24 * HOUR) if stale else Unknown())


def test_callback_that_waits_has_a_deadline_of_its_own() -> None:
    old = float(NOW - 1000 * HOUR)
    assert judge_job(QUEUE_RULES, "waiting", ID, old, seen(Envelope("x", takes="reply")), NOW) is None
    assert isinstance(judge_job(QUEUE_RULES, "waiting", ID, old, seen(Envelope("x", takes="list")), NOW), Verdict)


@pytest.mark.parametrize("state", ["waiting", "running", "done"])
def test_other_states_know_since_when(state: str) -> None:
    rule = QUEUE_RULES[state]
    assert rule.age_ms is not None
    assert judge_job(QUEUE_RULES, state, ID, float(NOW - rule.age_ms + 1), seen(), NOW) is None
    assert isinstance(judge_job(QUEUE_RULES, state, ID, float(NOW - rule.age_ms), seen(), NOW), Verdict)


# the table


def test_nearest_table_wins() -> None:
    table = {
        "ready": "6h",
        "pending": "10m",
        "queues": {"*": {"done": "2h"}, "mails": {"ready": {"age": "1h", "then": "dead"}, "done": "never"}},
        "pools": {"vms": {"pending": 60, "discovered": {"age": "1h", "then": "completed"}}},
    }
    ages = ages_of(table)
    assert ages.of_queue("mails")["ready"] == Rule(HOUR, "dead")
    assert ages.of_queue("mails")["done"].age_ms is None
    assert ages.of_queue("other")["ready"] == Rule(6 * HOUR, "cancelled")
    assert ages.of_queue("other")["done"].age_ms == 2 * HOUR
    assert ages.of_pool("vms")["pending"] == Rule(60_000, "dead")
    assert ages.of_pool("other")["pending"] == Rule(600_000, "dead")
    assert ages.of_pool("vms")["ready"] == Rule(6 * HOUR, "completed")
    assert ages.of_pool("vms")["discovered"] == Rule(HOUR, "completed")
    assert "discovered" not in ages.of_pool("other")


def test_class_inherits_missing_settings_from_its_state() -> None:
    table = {
        "queues": {"*": {"ready": {"age": "1h", "then": "dead", "classes": {"a": "2h", "b": {"then": "cancelled"}}}}}
    }
    rule = ages_of(table).of_queue("x")["ready"]
    assert rule.of("a") == Rule(2 * HOUR, "dead")
    assert rule.of("b") == Rule(HOUR, "cancelled")
    assert rule.of("c") is rule


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([], "a table of states and ages"),
        ({"redy": "1h"}, "no state 'redy', did you mean 'ready'"),
        ({"pools": {"vms": {"max_ready_age": 1}}}, "vms.max_ready_age: there is no such state, did you mean 'ready'"),
        ({"ready": "24"}, 'has no unit. Write "24s"'),
        ({"ready": {"age": "1h"}}, 'an age such as "24h" is needed; a table may stand under queues'),
        ({"ready": 0}, 'everything is that old; "never" is no limit'),
        ({"queues": {"mails": {5: "1h"}}}, "purge_ages.queues.mails.5: there is no such state"),
        ({"pools": {"vms": {"to boot": "1h"}}}, "purge_ages.pools.vms.to boot: a state is a word"),
        ({"pools": {"vms": {"ready": {"then": "a:b"}}}}, "purge_ages.pools.vms.ready: a state is a word"),
        ({"queues": []}, "a table for each name"),
        ({"queues": {"mails": "1h"}}, "purge_ages.queues.mails: a table of states"),
        ({"queues": {"mails": {"pending": "1h"}}}, "purge_ages.queues.mails.pending: there is no such state"),
        ({"queues": {"mails": {"ready": {"ages": "1h"}}}}, "unknown name 'ages', did you mean 'age'"),
        ({"queues": {"mails": {"ready": {"then": "done"}}}}, "then: 'done' cannot be. There is: cancelled, dead."),
        ({"queues": {"mails": {"ready": {"classes": 7}}}}, "classes: a table of ages"),
        ({"queues": {"*": {"ready": {"classes": {"a": {"classes": {"b": "1h"}}}}}}}, "a: unknown name 'classes'"),
        (
            {"queues": {"mails": {"orphaned": {"classes": {"a": "1h"}}}}},
            "orphaned.classes: orphaned entries have no class",
        ),
        (
            {"pools": {"vms": {"orphaned": {"classes": {"a": "1h"}}}}},
            "orphaned.classes: orphaned entries have no class",
        ),
        ({"pools": {"vms": {"ready": {"then": "ready"}}}}, "vms.ready.then: it is in that state already"),
        ({"pools": {"vms": {"ready": {"then": 7}}}}, "what becomes of it is a word"),
        ({"pools": {"vms": {"orphaned": {"then": "dead"}}}}, "then: 'dead' cannot be. There is: expired."),
    ],
)
def test_table_that_is_wrong_is_refused_with_the_right_name(table: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ages_of(table)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"redy": "1h"}, "purge_ages.pools.vms.redy: the pool has no state 'redy', did you mean 'ready'"),
        ({"ready": {"then": "runing"}}, "purge_ages.pools.vms.ready: the pool has no state 'runing', did you mean"),
        ({"ready": {"classes": {"stock": {"then": "gone"}}}}, "the pool has no state 'gone': pending, ready, running"),
    ],
)
def test_ages_of_a_pool_with_declared_states_are_for_these(table: dict[str, Any], message: str) -> None:
    states = ("pending", "ready", "running")
    right = {"ready": {"age": "1h", "then": "running", "classes": {"stock": "2h"}}, "orphaned": "1h"}
    for ages in ({"pools": {"vms": right}}, {"pools": {"*": table, "others": table}}):
        Relevo("shop", purge_ages=ages).pool("vms", states=states)
    app = Relevo("shop", purge_ages={"pools": {"vms": table}})
    app.pool("vms")
    with pytest.raises(OptionError, match=message):
        app.pool("vms", states=states)


def test_settings_of_the_purge_are_checked_and_it_is_off_by_default() -> None:
    assert (Settings().purge, Settings().purge_every, Settings().purge_ages) == ("off", 3600.0, {})
    with pytest.raises(SettingsError, match="did you mean 'ready'"):
        Settings(purge_ages={"redy": "6h"})
    with pytest.raises(SettingsError, match="'on', 'observe' or 'off'"):
        Settings(purge="yes")
