"""Healthy, degraded, unhealthy: every border, what makes it better again, and the reasons."""

from __future__ import annotations

from typing import Any

import pytest

from relevo.errors import OptionError
from relevo.health.judging import judge, judge_evictions, judge_memory, judge_pool, judge_workers
from relevo.health.status import Health, Reason, Status, graded, measures, stale, worst
from relevo.health.thresholds import ELSEWHERE, NAMES, Limits, limits_of, read_limits
from relevo.health.vitals import Fault, PoolVitals, Rates, StateVitals, TaskLoad, Vitals

HEALTHY, DEGRADED, UNHEALTHY, UNKNOWN = Status.HEALTHY, Status.DEGRADED, Status.UNHEALTHY, Status.UNKNOWN
STATES = ("ready", "scheduled", "running", "waiting", "done", "dead")


def queue(name: str = "mail", *, oldest_s: float = 0.0, stuck: int = 0, **more: Any) -> Vitals:
    sizes = {state: more.pop(state, 0) for state in STATES}
    states = {state: StateVitals(size) for state, size in sizes.items()}
    states["ready"] = StateVitals(sizes["ready"], round(oldest_s * 1000), stuck=stuck)
    return Vitals(name=name, now_ms=0, states=states, stuck=stuck, **more)


def judged(vitals: Vitals, *, workers: int = 1, **limits: Any) -> Status:
    return worst(reason.status for reason in judge(vitals, Limits(**limits), workers=workers))


@pytest.mark.parametrize(
    ("measure", "limits", "degraded", "unhealthy"),
    [
        ("dead", {}, 100, 1000),
        ("stuck", {}, 10, 50),
        ("ready", {"ready_max": 500, "ready_critical": 1000}, 500, 1000),
        ("waiting", {"waiting_max": 100, "waiting_critical": 200}, 100, 200),
        ("oldest_s", {"slo": 30.0}, 30, 120),
        ("oldest_s", {"slo": 30.0, "slo_critical": 300.0}, 30, 300),
    ],
)
def test_a_threshold_includes_its_border(measure: str, limits: dict[str, Any], degraded: int, unhealthy: int) -> None:
    for value, status in (
        (0, HEALTHY),
        (degraded - 1, HEALTHY),
        (degraded, DEGRADED),
        (unhealthy - 1, DEGRADED),
        (unhealthy, UNHEALTHY),
        (unhealthy + 1, UNHEALTHY),
    ):
        vitals: dict[str, Any] = {"ready": 1} if measure == "oldest_s" else {}
        assert judged(queue(**{**vitals, measure: value}), **limits) is status, value


def test_scheduled_jobs_that_are_overdue_miss_a_target_too() -> None:
    assert judged(queue(scheduled=1, overdue=1, overdue_age_ms=30_000), slo=30.0) is DEGRADED


def test_nothing_is_judged_that_has_no_limit() -> None:
    more: dict[str, Any] = {"totals": {"dropped": 5}, "dropped_recently": 5, "rates": falling(), "clears_in_s": 10.0**6}
    full = queue(ready=10**6, waiting=10**6, dead=10**6, stuck=10**6, oldest_s=10**6, **more)
    nothing: dict[str, Any] = {**dict.fromkeys(NAMES, 0), "task_slo": {}}
    limits = Limits(**nothing)
    for workers in (0, 1):
        assert judge(full, limits, workers=workers, dead_max=10, full_ms=10**9) == ()


# ordinary load


def falling(done: float = 600.0, enqueued: float = 0.0) -> dict[str, Rates | None]:
    return {"1m": None, "5m": Rates(span_s=300.0, enqueued=enqueued, done=done), "15m": None}


@pytest.mark.parametrize(
    "vitals",
    [
        queue(ready=5_227, oldest_s=3),
        queue(ready=5_227, oldest_s=3, rates=falling(10, 6_000)),  # a burst: more came than could be done by now
        queue(ready=10**6, oldest_s=1_800, rates=falling(), clears_in_s=3_599.0),
        queue(ready=10**6, oldest_s=9_000, stuck=10**5, rates=falling(), clears_in_s=600.0),  # soon done, if late
        queue(waiting=10**6),
        queue(waiting=5_000, parked=5_000),
    ],
)
def test_ordinary_load_is_healthy(vitals: Vitals) -> None:
    assert judge(vitals, Limits(), workers=1) == ()


@pytest.mark.parametrize(
    ("more", "status", "text"),
    [
        ({"clears_in_s": 3_600.0}, DEGRADED, "mail: 9,000 ready take 1h at this rate, their limit is 1h"),
        ({"clears_in_s": 90_000.0}, UNHEALTHY, "mail: 9,000 ready take 1d1h at this rate, their limit is 1d"),
        ({}, DEGRADED, "mail: 9,000 ready, the first for 10m, and more come than are done"),
        ({"rates": {}}, HEALTHY, ""),  # the rate is not known
        ({"paused": True}, DEGRADED, "mail: paused, and 9,000 jobs due"),
    ],
)
def test_a_backlog_is_judged_by_the_time_until_it_is_cleared(more: dict[str, Any], status: Status, text: str) -> None:
    vitals = queue(ready=9_000, oldest_s=600, **{"rates": falling(), **more})
    reasons = judge(vitals, Limits(), workers=1)
    assert worst(reason.status for reason in reasons) is status
    assert [reason.text for reason in reasons] == ([text] if text else [])


def test_a_backlog_that_no_worker_serves_is_one_reason() -> None:
    (reason,) = judge(queue(ready=9, oldest_s=600, rates=falling(0, 1)), Limits(), workers=0)
    assert reason.measure == "unserved"


def test_parked_jobs_are_degraded_at_most() -> None:
    limits = {"waiting_max": 100, "waiting_critical": 200}
    assert judged(queue(waiting=500, parked=500), **limits) is DEGRADED
    assert judged(queue(waiting=500, parked=350), **limits) is DEGRADED
    assert judged(queue(waiting=500, parked=300), **limits) is UNHEALTHY


def test_tasks_have_targets_of_their_own() -> None:
    loads = (TaskLoad("shop.mail", 0, 5, oldest_age_ms=40_000), TaskLoad("shop.report", 0, 5, oldest_age_ms=40_000))
    (reason,) = judge(queue(ready=10, tasks=loads), Limits(task_slo={"shop.mail": 30.0}), workers=1)
    assert (reason.measure, reason.status) == ("slo shop.mail", DEGRADED)
    assert reason.text == "mail: oldest of task 'shop.mail' 40s over its 30s target"
    assert judged(queue(ready=10, tasks=loads), task_slo={"shop.mail": 10.0}) is UNHEALTHY


@pytest.mark.parametrize(
    ("dead", "dropped", "recently", "text"),
    [
        (99, 0, 0, ""),
        (99, 500, 0, ""),  # long ago: there is room again
        (10, 500, 20, "mail: 500 dead letters dropped beyond dead_max (5,000), 20 of them in the last hour"),
        (5_000, 500, 0, "mail: 500 dead letters dropped beyond dead_max (5,000)"),
    ],
)
def test_dropped_dead_letters_are_a_reason(dead: int, dropped: int, recently: int, text: str) -> None:
    vitals = queue(dead=dead, totals={"dropped": dropped}, dropped_recently=recently)
    reasons = judge(vitals, Limits(dead_warning=10**6, dead_critical=10**6), workers=1, dead_max=5_000)
    assert [reason.text for reason in reasons] == ([text] if text else [])
    if dead == 5_000:
        pool = PoolVitals(name="vms", queue="mail", now_ms=0, states={}, dead=dead, totals={"dropped": dropped})
        (reason,) = judge_pool(pool, Limits(dead_warning=10**6, dead_critical=10**6), dead_max=5_000)
        assert reason.text == text


def test_slots_that_are_all_taken_are_a_reason() -> None:
    (reason,) = judge(queue(ready=300), Limits(), workers=2, full_ms=60_000)
    assert (reason.measure, reason.status) == ("slots", DEGRADED)
    assert reason.text == "mail: no free slot on 2 workers for 1m, 300 jobs due: more slots (-c, -Q) or workers"
    assert judge(queue(ready=300), Limits(), workers=2, full_ms=59_999) == ()
    assert judge(queue(), Limits(), workers=2, full_ms=60_000) == ()


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (HEALTHY, {99: HEALTHY, 100: DEGRADED, 1000: UNHEALTHY}),
        (DEGRADED, {0: HEALTHY, 79: HEALTHY, 80: DEGRADED, 100: DEGRADED, 999: DEGRADED, 1000: UNHEALTHY}),
        (UNHEALTHY, {79: HEALTHY, 80: DEGRADED, 799: DEGRADED, 800: UNHEALTHY, 999: UNHEALTHY}),
        (UNKNOWN, {99: HEALTHY, 100: DEGRADED}),
    ],
)
def test_a_status_gets_worse_at_once_and_better_below_eighty_percent(
    before: Status, expected: dict[int, Status]
) -> None:
    assert {value: graded(value, 100, 1000, before) for value in expected} == expected


@pytest.mark.parametrize(
    ("vitals", "limits", "text"),
    [
        (queue(ready=7, oldest_s=252), {"slo": 30.0, "slo_critical": 600.0}, "mail: oldest 4m12s over its 30s target"),
        (queue(ready=1, oldest_s=400), {"slo_critical": 300.0}, "mail: oldest 6m40s over its 5m target"),
        (queue(ready=1204), {"ready_max": 500, "ready_critical": 1000}, "mail: 1,204 ready, its limit is 1,000"),
        (queue(waiting=150), {"waiting_max": 100}, "mail: 150 waiting for others, its limit is 100"),
        (queue(dead=120, dead_recently=41), {}, "mail: 120 dead letters, its limit is 100 (+41 in 15 minutes)"),
        (queue(stuck=12), {}, "mail: 12 stuck, its limit is 10 (12 ready, for 2h or longer)"),
        (queue(silent=3), {}, "mail: 3 jobs of lost workers, not recovered by any worker"),
        (queue(ready=1, paused=True), {}, "mail: paused, and 1 job due"),
        (queue(faults={"ready": Fault(0, "of another type")}), {}, "mail: key ready: of another type"),
        (queue(faults={"a": Fault(-9, "old"), "b": Fault(0, "new")}), {}, "mail: key b: new, and 1 more"),
        (queue(waiting=100, parked=100), {"waiting_max": 100}, "mail: 100 parked, its limit is 100"),
        (queue(waiting=100, parked=30), {"waiting_max": 100}, "mail: 100 waiting, 30 of them parked, its limit is 100"),
    ],
)
def test_reasons_are_sentences(vitals: Vitals, limits: dict[str, Any], text: str) -> None:
    (reason,) = judge(vitals, Limits(**limits), workers=1)
    assert reason.text == text


def test_a_reason_that_holds_on_says_until_when() -> None:
    """The statuses of the look before are what keeps a queue near its border from flapping."""
    (reason,) = judge(queue(dead=90), Limits(), workers=1, before={"dead": DEGRADED})
    assert (reason.measure, reason.status) == ("dead", DEGRADED)
    assert reason.text == "mail: 90 dead letters, its limit is 100; well again below 80"
    (reason,) = judge(queue(ready=1, oldest_s=26), Limits(slo=30.0), workers=1, before={"slo": DEGRADED})
    assert reason.text == "mail: oldest 26s, its target is 30s; well again below 24s"


@pytest.mark.parametrize(
    ("vitals", "workers", "status"),
    [
        (queue(), 0, HEALTHY),
        (queue(ready=1, oldest_s=59), 0, DEGRADED),
        (queue(ready=1, oldest_s=60), 0, UNHEALTHY),
        (queue(ready=1, oldest_s=60), 1, HEALTHY),
        (queue(ready=1, oldest_s=60, idle_workers=1), 0, HEALTHY),
        (queue(scheduled=5), 0, HEALTHY),
        (queue(scheduled=5, overdue=1, overdue_age_ms=60_000), 0, UNHEALTHY),
        (queue(ready=1, oldest_s=60, running=2, silent=1), 0, DEGRADED),  # a loop of one's own has one of them
        (queue(ready=1, oldest_s=60, running=2, silent=2), 0, UNHEALTHY),
        (queue(ready=1, oldest_s=60, paused=True), 0, DEGRADED),
        (queue(paused=True), 0, HEALTHY),
    ],
)
def test_due_jobs_without_workers(vitals: Vitals, workers: int, status: Status) -> None:
    assert judged(vitals, workers=workers) is status


@pytest.mark.parametrize(
    ("lost", "limit", "count"), [([], 1, 0), (["a"], 1, 1), (["a", "b"], 3, 0), (["a"] * 3, 3, 1), (["a"], 0, 0)]
)
def test_lost_workers_are_a_reason_from_their_limit_on(lost: list[str], limit: int, count: int) -> None:
    assert [reason.status for reason in judge_workers(lost, limit)] == [DEGRADED] * count


@pytest.mark.parametrize(
    ("used", "most", "before", "status"),
    [
        (899, 1000, HEALTHY, HEALTHY),
        (900, 1000, HEALTHY, DEGRADED),
        (979, 1000, HEALTHY, DEGRADED),
        (980, 1000, HEALTHY, UNHEALTHY),
        (1030, 1000, HEALTHY, UNHEALTHY),
        (720, 1000, DEGRADED, DEGRADED),
        (719, 1000, DEGRADED, HEALTHY),
        (10**12, 0, HEALTHY, HEALTHY),  # it has no limit of its own
    ],
)
def test_a_server_that_is_nearly_full(used: int, most: int, before: Status, status: Status) -> None:
    found = judge_memory(used, most, Limits(), before={"memory": before})
    assert worst(reason.status for reason in found) is status
    assert not judge_memory(used, most, Limits(memory_warning=0, memory_critical=0)), "0: not judged"


def test_the_reason_of_a_full_server_is_of_no_queue() -> None:
    (reason,) = judge_memory(93, 100, Limits())
    assert (reason.queue, reason.measure) == ("", "memory")
    assert reason.text == "the server: 93 % of its memory in use, its limit is 90"


@pytest.mark.parametrize(
    ("age_s", "status"),
    [(0, HEALTHY), (599, HEALTHY), (600, HEALTHY), (600.001, UNKNOWN), (-5, HEALTHY), (-601, UNKNOWN)],
)
def test_a_snapshot_older_than_two_intervals_says_nothing(age_s: float, status: Status) -> None:
    kept = Health(app="shop", env="prod", status=HEALTHY, checked_at_ms=1_000_000, every_s=300.0)
    seen = stale(kept, 1_000_000 + round(age_s * 1000))
    assert seen.status is status
    assert bool(seen.reasons) is (status is UNKNOWN)


def test_measures_are_remembered_for_the_next_look() -> None:
    reasons = (Reason("mail", "dead", DEGRADED, ""), Reason("", "workers", DEGRADED, ""))
    assert measures(Health(app="shop", env="prod", status=DEGRADED, checked_at_ms=1, reasons=reasons)) == {
        "mail": {"dead": DEGRADED},
        "": {"workers": DEGRADED},
    }


def test_statuses_have_numbers_that_order_them() -> None:
    assert [status.number for status in (HEALTHY, DEGRADED, UNHEALTHY, UNKNOWN)] == [0, 1, 2, 3]
    assert worst([HEALTHY, UNHEALTHY, DEGRADED]) is UNHEALTHY
    assert worst([]) is HEALTHY


# limits


def test_the_defaults_are_those_that_were_asked_for() -> None:
    limits = limits_of({}, "shop:actions:pool:vms")
    assert {theirs: getattr(limits, ours) for theirs, ours in ELSEWHERE.items()} == {
        "pending_queue_max": 100,
        "ready_queue_max": 500,
        "dlq_max_warning": 100,
        "dlq_max_critical": 1000,
        "stuck_vm_age_threshold": 7200.0,
        "stuck_vm_max_warning": 10,
        "stuck_vm_max_critical": 50,
    }
    assert (limits.ready_critical, limits.waiting_critical) == (1000, 200)
    of_a_queue = Limits()
    assert of_a_queue.ready_max == of_a_queue.waiting_max == 0
    assert limits_of({}, "mail") == of_a_queue


def test_a_size_that_is_too_much_is_unhealthy_at_twice_that() -> None:
    table = read_limits("health_limits", {"ready_max": 2_000, "mail": {"waiting_max": 5, "ready_critical": 0}})
    assert limits_of(table, "other").ready_critical == 4_000
    assert limits_of(table, "shop:actions:pool:vms").ready_critical == 4_000
    assert (limits_of(table, "mail").waiting_critical, limits_of(table, "mail").ready_critical) == (10, 0)


def test_a_queue_can_have_limits_of_its_own() -> None:
    table = read_limits(
        "health_limits", {"ready_max": 10, "mail": {"slo": "30s", "ready_max": 20}, "a:actions": {"slo": 5}}
    )
    assert limits_of(table, "mail") == Limits(slo=30.0, ready_max=20, ready_critical=40)
    assert limits_of(table, "a:actions") == Limits(slo=5.0, ready_max=10, ready_critical=20)
    assert limits_of(table, "other") == Limits(ready_max=10, ready_critical=20)
    assert read_limits("health_limits", table) == table, "what was read can be read again"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ready_mx": 5}, "health_limits: unknown limit 'ready_mx', did you mean 'ready_max'?"),
        ({"dlq_max_warning": 5}, "health_limits: unknown limit 'dlq_max_warning', did you mean 'dead_warning'?"),
        ({"mail": {"slow": "3s"}}, "health_limits.mail: unknown limit 'slow', did you mean 'slo'?"),
        ({"slo": {"mail": 3}}, "health_limits.slo: not a duration: {'mail': 3}"),
        ({"mail": {"lost_workers": 3}}, "that is for the whole app; write it under [health_limits]"),
        ({"memory_critical": 50}, "health_limits: memory_critical (50) is below memory_warning (90)"),
        ({"slo": "30"}, "health_limits.slo: '30' has no unit"),
        ({"ready_max": "many"}, "health_limits.ready_max: a whole number is needed, 0 for no limit, found 'many'"),
        ({"ready_max": True}, "health_limits.ready_max: a whole number is needed"),
        ({"dead_warning": 2000}, "health_limits: dead_critical (1,000) is below dead_warning (2,000)"),
        ({"mail": {"slo": "30s", "slo_critical": "20s"}}, "health_limits.mail: slo_critical (20s) is below slo (30s)"),
        ({"": {}}, "health_limits.: a table is for the queue of that name"),
        ([], "health_limits: a table of limits is needed, found []"),
    ],
)
def test_wrong_limits_are_refused_with_what_is_right(given: Any, message: str) -> None:
    with pytest.raises(OptionError) as refused:
        read_limits("health_limits", given)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("policy", "evicted", "texts"),
    [
        ("noeviction", 16_500, []),  # it was mended
        ("allkeys-lru", 0, []),  # doctor and server_check speak of it
        ("allkeys-lru", 16_500, ["the server: 16,500 keys evicted (maxmemory-policy allkeys-lru), jobs may be lost"]),
    ],
)
def test_evicted_keys_are_a_reason_until_the_policy_is_mended(policy: str, evicted: int, texts: list[str]) -> None:
    found = judge_evictions(policy, evicted)
    assert [reason.text for reason in found] == texts
    assert all(reason.status is UNHEALTHY for reason in found)
