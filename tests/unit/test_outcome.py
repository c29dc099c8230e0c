"""decide: every thing that can happen, and each border between one future and another."""

from __future__ import annotations

from typing import get_args

import pytest

from relevo.engine.backoff import Backoff
from relevo.engine.job import ATTEMPTS_TOLD, Attempt, State, Story
from relevo.engine.outcome import (
    MOST_REFUSALS,
    CancelAsked,
    End,
    Failed,
    Finish,
    GiveBack,
    Happened,
    Interrupted,
    LeaseLost,
    Outcome,
    Policy,
    Raised,
    Refused,
    Reroute,
    Returned,
    Route,
    TimedOut,
    TooLate,
    TryAgain,
    UnknownTarget,
    Unrunnable,
    decide,
)
from relevo.engine.verdicts import Cancel, Retry, Snooze

NOW = 1_800_000_000_000
DAY = 86_400_000
ATTEMPT = Attempt("failed", "w1", NOW - 10, NOW, "ValueError", "no")
POLICY = Policy(retries=3, backoff=Backoff.exponential("2s", jitter=0))
FAILED_ONCE = Story(attempts=(Attempt("failed"),), spent=1)


def after(happened: Happened, story: Story = Story(), policy: Policy = POLICY, now_ms: int = NOW) -> Outcome:
    return decide(story, happened, policy, now_ms, 0.5)


def test_this_table_knows_everything_that_can_happen() -> None:
    ran = {Returned, Raised, Failed, TimedOut, LeaseLost, Interrupted}
    assert set(get_args(Happened)) == ran | {UnknownTarget, Refused, Unrunnable, CancelAsked, TooLate}


@pytest.mark.parametrize(
    ("happened", "outcome"),
    [
        (Returned(), Finish()),
        (Interrupted(), GiveBack(None)),  # nothing is spent
        (CancelAsked(), End(State.CANCELLED, "cancelled", FAILED_ONCE)),
        (TooLate(), End(State.EXPIRED, "expired", FAILED_ONCE)),
    ],
)
def test_an_end_that_is_no_failure_keeps_the_history(happened: Happened, outcome: Outcome) -> None:
    assert after(happened, FAILED_ONCE) == outcome


def test_what_can_never_run_is_dead_at_once_with_the_reason() -> None:
    outcome = after(Unrunnable("unreadable", ATTEMPT))
    assert outcome == End(State.DEAD, "unreadable", Story(attempts=(ATTEMPT,)))


# --- failures


@pytest.mark.parametrize("retries", [0, 1, 3, 10])
@pytest.mark.parametrize("happened", [Raised(ValueError(), ATTEMPT), TimedOut(ATTEMPT), Failed(ATTEMPT, False)])
def test_n_retries_are_n_plus_one_attempts(retries: int, happened: Happened) -> None:
    policy = Policy(retries=retries, backoff=Backoff.exponential("2s", jitter=0))
    story, executions, delays = Story(), 0, []
    while True:
        executions += 1
        outcome = after(happened, story, policy)
        if not isinstance(outcome, TryAgain):
            break
        story = outcome.story
        delays.append(outcome.delay)
    assert executions == 1 + retries
    assert delays == [2.0**n for n in range(1, retries + 1)]
    assert isinstance(outcome, End)
    assert (outcome.state, outcome.reason) == (State.DEAD, "retries_exhausted")
    assert outcome.story.spent == retries + 1
    assert len(outcome.story.attempts) == retries + 1


def test_the_delay_is_placed_in_the_jitter_by_chance() -> None:
    policy = Policy(backoff=Backoff.fixed("10s", jitter=0.5))
    delays = []
    for chance in (0.0, 0.5, 1.0):
        outcome = decide(Story(), TimedOut(ATTEMPT), policy, NOW, chance)
        assert isinstance(outcome, TryAgain)
        delays.append(outcome.delay)
    assert delays == [5, 10, 15]


@pytest.mark.parametrize(
    ("policy", "happened", "is_permanent"),
    [
        (Policy(give_up_on=(LookupError,)), Raised(LookupError(), ATTEMPT), True),
        (Policy(give_up_on=(LookupError,)), Raised(KeyError("x"), ATTEMPT), True),
        (Policy(give_up_on=(LookupError,)), Raised(ValueError(), ATTEMPT), False),
        (Policy(retry_on=(OSError,)), Raised(ValueError(), ATTEMPT), True),
        (Policy(retry_on=(OSError,)), Raised(TimeoutError(), ATTEMPT), False),
        # giving up wins over retrying
        (Policy(retry_on=(OSError,), give_up_on=(FileNotFoundError,)), Raised(FileNotFoundError(), ATTEMPT), True),
        (Policy(retry_on=(OSError,), give_up_on=(FileNotFoundError,)), Raised(PermissionError(), ATTEMPT), False),
        # another process has judged it
        (POLICY, Failed(ATTEMPT, True), True),
        # time-outs and Retry are not subject to the filters
        (Policy(retry_on=(OSError,), give_up_on=(TimeoutError,)), TimedOut(ATTEMPT), False),
        (Policy(retry_on=(OSError,), give_up_on=(Exception,)), Raised(Retry(), ATTEMPT), False),
    ],
)
def test_errors_that_the_policy_does_not_retry_are_permanent(
    policy: Policy, happened: Happened, is_permanent: bool
) -> None:
    outcome = after(happened, FAILED_ONCE, policy)
    story = Story(attempts=(*FAILED_ONCE.attempts, ATTEMPT), spent=2)
    if is_permanent:
        assert outcome == End(State.DEAD, "permanent", story)
    else:
        assert isinstance(outcome, TryAgain) and outcome.story == story


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), MemoryError(), RecursionError()])
def test_a_task_that_wants_to_end_the_program_has_only_failed(error: BaseException) -> None:
    assert after(Raised(error, ATTEMPT)) == TryAgain(2.0, Story(attempts=(ATTEMPT,), spent=1))


# --- verdicts


@pytest.mark.parametrize(("retry", "delay"), [(Retry(), 2.0), (Retry(delay="30s"), 30.0), (Retry(delay=0), 0.0)])
def test_a_retry_uses_one_up_and_may_choose_its_delay(retry: Retry, delay: float) -> None:
    assert after(Raised(retry, ATTEMPT)) == TryAgain(delay, Story(attempts=(ATTEMPT,), spent=1))
    outcome = after(Raised(retry, ATTEMPT), Story(spent=3))
    assert isinstance(outcome, End)
    assert outcome.reason == "retries_exhausted"


def test_a_snooze_spends_nothing_however_often() -> None:
    story = Story(spent=3)
    for _ in range(100):
        outcome = after(Raised(Snooze("5m"), ATTEMPT), story, Policy(retries=3))
        assert isinstance(outcome, TryAgain)
        assert outcome.delay == 300
        story = outcome.story
    assert (story.spent, story.crashes) == (3, 0)
    assert len(story.attempts) == ATTEMPTS_TOLD


def test_a_task_can_cancel_itself_with_a_reason() -> None:
    assert after(Raised(Cancel("sold out"), ATTEMPT)) == End(State.CANCELLED, "sold out", Story(attempts=(ATTEMPT,)))
    assert after(Raised(Cancel(), ATTEMPT)) == End(State.CANCELLED, "cancelled by the task", Story(attempts=(ATTEMPT,)))


# --- crashes


@pytest.mark.parametrize("max_crashes", [1, 2, 3])
def test_a_job_that_takes_down_too_many_workers_is_poison(max_crashes: int) -> None:
    policy = Policy(max_crashes=max_crashes, retries=0)
    story, deaths = Story(), 0
    while True:
        deaths += 1
        outcome = after(LeaseLost(ATTEMPT), story, policy)
        if not isinstance(outcome, GiveBack):
            break
        assert outcome.story is not None
        story = outcome.story
        assert (story.crashes, story.spent) == (deaths, 0), "a crash has a limit of its own"
    assert deaths == max_crashes
    assert isinstance(outcome, End)
    assert (outcome.state, outcome.reason, outcome.story.crashes) == (State.DEAD, "poison", max_crashes)


def test_suspects_of_a_process_that_died_are_not_blamed_before_one_was_alone() -> None:
    story = Story(crashes=2)
    back = after(LeaseLost(ATTEMPT, among=30), story, Policy(max_crashes=3))
    assert back == GiveBack(Story(attempts=(ATTEMPT,), crashes=2, among=30))
    assert back.story is not None
    alone = after(LeaseLost(ATTEMPT), back.story, Policy(max_crashes=3))
    assert isinstance(alone, End) and alone.reason == "poison"


def test_a_suspect_that_fails_by_itself_may_share_a_process_with_many_again() -> None:
    outcome = after(Raised(ValueError(), ATTEMPT), Story(crashes=2, among=2), Policy(retries=3))
    assert isinstance(outcome, TryAgain)
    assert (outcome.story.crashes, outcome.story.among) == (2, 0)


def test_crashes_and_failures_are_counted_apart() -> None:
    story = Story(spent=3, crashes=2)
    assert after(LeaseLost(ATTEMPT), story, Policy(retries=3, max_crashes=4)) == GiveBack(
        Story(attempts=(ATTEMPT,), spent=3, crashes=3)
    )
    outcome = after(TimedOut(ATTEMPT), story, Policy(retries=4))
    assert isinstance(outcome, TryAgain)
    assert (outcome.story.spent, outcome.story.crashes) == (4, 2)


# --- unknown tasks


ROUTE = Route("shop.charge", "aaaaaaaaaa")
UNKNOWN = UnknownTarget(ATTEMPT, Route("shop.charge"))


def test_a_job_of_an_unknown_task_waits_for_another_worker_and_is_logged_once() -> None:
    outcome = after(UNKNOWN, Story(spent=3, crashes=2))
    told = Story(attempts=(ATTEMPT,), spent=3, crashes=2, unknown_since_ms=NOW)
    assert outcome == Reroute(86_400, told, "shop.charge"), "nothing is spent"
    assert after(UNKNOWN, told, now_ms=NOW + 400_000) == Reroute(86_000, told, "shop.charge")


def test_refused_arguments_are_offered_to_other_versions_each_once() -> None:
    story = Story(spent=1, refused_by=("bbbbbbbbbb",))
    outcome = after(Refused("bad_arguments", ATTEMPT, ROUTE), story)
    told = Story(attempts=(ATTEMPT,), spent=1)
    both = Story(attempts=(ATTEMPT,), spent=1, refused_by=("aaaaaaaaaa", "bbbbbbbbbb"))
    assert outcome == Reroute(86_400, both, "shop.charge", End(State.DEAD, "bad_arguments", told))
    again = after(Refused("bad_arguments", ATTEMPT, ROUTE), both)
    assert isinstance(again, Reroute)
    assert again.story.refused_by == both.refused_by
    ran = after(TimedOut(ATTEMPT), both)
    assert isinstance(ran, TryAgain)
    assert ran.story.refused_by == (), "it ran: the next one that refuses it begins anew"


def test_a_job_that_many_versions_refused_is_given_up() -> None:
    story = Story(refused_by=tuple(f"{n:010}" for n in range(MOST_REFUSALS)))
    outcome = after(Refused("bad_arguments", ATTEMPT, ROUTE), story)
    assert isinstance(outcome, End)
    assert outcome.reason == "bad_arguments"
    assert isinstance(after(UnknownTarget(ATTEMPT, ROUTE), story), End)


@pytest.mark.parametrize(("waited", "ends"), [(DAY - 1, False), (DAY, False), (DAY + 1, True)])
def test_a_job_whose_task_was_unknown_for_a_day_is_dead(waited: int, ends: bool) -> None:
    story = Story(attempts=(ATTEMPT,), unknown_since_ms=NOW - waited)
    outcome = after(UNKNOWN, story, Policy(unknown_task_ttl=86_400))
    if ends:
        assert outcome == End(State.DEAD, "unknown_task", story)
    else:
        assert outcome == Reroute((DAY - waited) / 1000, story, "shop.charge")


def test_a_worker_that_knows_the_task_resets_the_time_of_being_unknown() -> None:
    """Else a job that retries for days would die at the first old worker it meets after a deploy."""
    story = Story(attempts=(ATTEMPT,), unknown_since_ms=NOW - DAY)
    failed = after(TimedOut(ATTEMPT), story)
    assert isinstance(failed, TryAgain)
    outcome = after(UNKNOWN, failed.story, now_ms=NOW + DAY)
    assert isinstance(outcome, Reroute)
    assert (outcome.wait, outcome.story.unknown_since_ms) == (86_400, NOW + DAY)
