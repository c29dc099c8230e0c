"""decide: every thing that can happen, and each border between one future and another."""

from __future__ import annotations

from typing import get_args

import pytest

from relevo.model.backoff import Backoff
from relevo.model.job import ATTEMPTS_TOLD, Attempt, State, Story
from relevo.model.outcome import (
    UNKNOWN_REST_MAX,
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
    Returned,
    TimedOut,
    TooLate,
    TryAgain,
    UnknownTarget,
    Unrunnable,
    decide,
)
from relevo.model.verdicts import Cancel, Retry, Snooze

NOW = 1_800_000_000_000
DAY = 86_400_000
ATTEMPT = Attempt("failed", "w1", NOW - 10, NOW, "ValueError", "no")
POLICY = Policy(retries=3, backoff=Backoff.exponential("2s", jitter=0))
FAILED_ONCE = Story(attempts=(Attempt("failed"),), spent=1)


def after(happened: Happened, story: Story = Story(), policy: Policy = POLICY, now_ms: int = NOW) -> Outcome:
    return decide(story, happened, policy, now_ms, 0.5)


def test_this_table_knows_everything_that_can_happen() -> None:
    shown = {
        Returned,
        Raised,
        Failed,
        TimedOut,
        LeaseLost,
        Interrupted,
        UnknownTarget,
        Unrunnable,
        CancelAsked,
        TooLate,
    }
    assert set(get_args(Happened)) == shown


@pytest.mark.parametrize("story", [Story(), FAILED_ONCE])
def test_a_return_finishes_whatever_came_before(story: Story) -> None:
    assert after(Returned(), story) == Finish()


def test_an_interrupted_job_is_given_back_and_nothing_is_spent() -> None:
    assert after(Interrupted(), FAILED_ONCE) == GiveBack(None)


def test_a_cancelled_and_an_expired_job_keep_their_history() -> None:
    assert after(CancelAsked(), FAILED_ONCE) == End(State.CANCELLED, "cancelled", FAILED_ONCE)
    assert after(TooLate(), FAILED_ONCE) == End(State.EXPIRED, "expired", FAILED_ONCE)


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


def test_an_error_to_give_up_on_is_permanent() -> None:
    policy = Policy(give_up_on=(LookupError,))
    for error in (LookupError(), KeyError("x")):
        outcome = after(Raised(error, ATTEMPT), FAILED_ONCE, policy)
        assert isinstance(outcome, End)
        assert (outcome.state, outcome.reason, outcome.story.spent) == (State.DEAD, "permanent", 2)
    assert isinstance(after(Raised(ValueError(), ATTEMPT), policy=policy), TryAgain)


def test_an_error_that_is_not_to_be_retried_is_permanent() -> None:
    policy = Policy(retry_on=(OSError,))
    assert isinstance(after(Raised(TimeoutError(), ATTEMPT), policy=policy), TryAgain)
    outcome = after(Raised(ValueError(), ATTEMPT), policy=policy)
    assert isinstance(outcome, End)
    assert outcome.reason == "permanent"


def test_giving_up_wins_over_retrying() -> None:
    policy = Policy(retry_on=(OSError,), give_up_on=(FileNotFoundError,))
    assert isinstance(after(Raised(FileNotFoundError(), ATTEMPT), policy=policy), End)
    assert isinstance(after(Raised(PermissionError(), ATTEMPT), policy=policy), TryAgain)


def test_what_another_process_judged_permanent_is_permanent() -> None:
    outcome = after(Failed(ATTEMPT, True))
    assert outcome == End(State.DEAD, "permanent", Story(attempts=(ATTEMPT,), spent=1))


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), MemoryError(), RecursionError()])
def test_a_task_that_wants_to_end_the_program_has_only_failed(error: BaseException) -> None:
    assert after(Raised(error, ATTEMPT)) == TryAgain(2.0, Story(attempts=(ATTEMPT,), spent=1))


def test_a_time_out_is_retried_whatever_the_filters_say() -> None:
    policy = Policy(retry_on=(OSError,), give_up_on=(TimeoutError,), backoff=Backoff.fixed(1, jitter=0))
    assert isinstance(after(TimedOut(ATTEMPT), policy=policy), TryAgain)


# --- verdicts


def test_a_retry_uses_one_up_and_may_choose_its_delay() -> None:
    assert after(Raised(Retry(), ATTEMPT)) == TryAgain(2.0, Story(attempts=(ATTEMPT,), spent=1))
    assert after(Raised(Retry(delay="30s"), ATTEMPT)) == TryAgain(30.0, Story(attempts=(ATTEMPT,), spent=1))
    assert after(Raised(Retry(delay=0), ATTEMPT)) == TryAgain(0.0, Story(attempts=(ATTEMPT,), spent=1))
    outcome = after(Raised(Retry(delay="30s"), ATTEMPT), Story(spent=3))
    assert isinstance(outcome, End)
    assert outcome.reason == "retries_exhausted"


def test_a_retry_is_not_subject_to_the_filters_for_errors() -> None:
    policy = Policy(retry_on=(OSError,), give_up_on=(Exception,))
    assert isinstance(after(Raised(Retry(), ATTEMPT), policy=policy), TryAgain)


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


def test_crashes_and_failures_are_counted_apart() -> None:
    story = Story(spent=3, crashes=2)
    assert after(LeaseLost(ATTEMPT), story, Policy(retries=3, max_crashes=4)) == GiveBack(
        Story(attempts=(ATTEMPT,), spent=3, crashes=3)
    )
    outcome = after(TimedOut(ATTEMPT), story, Policy(retries=4))
    assert isinstance(outcome, TryAgain)
    assert (outcome.story.spent, outcome.story.crashes) == (4, 2)


# --- unknown tasks


def test_a_job_of_an_unknown_task_waits_longer_each_time_and_is_logged_once() -> None:
    story, now, delays = Story(), NOW, []
    for _ in range(25):
        outcome = after(UnknownTarget(ATTEMPT), story, now_ms=now)
        assert isinstance(outcome, TryAgain)
        delays.append(outcome.delay)
        story, now = outcome.story, now + round(outcome.delay * 1000)
    assert delays[:4] == [
        1,
        1.25,
        pytest.approx(1.5625),
        pytest.approx(1.953, abs=0.001),
    ]  # a quarter of the time so far
    assert delays == sorted(delays)
    assert delays[-3:] == [UNKNOWN_REST_MAX] * 3
    assert story == Story(attempts=(ATTEMPT,), unknown_since_ms=NOW)


@pytest.mark.parametrize(("waited", "ends"), [(DAY - 1, False), (DAY, False), (DAY + 1, True)])
def test_a_job_whose_task_was_unknown_for_a_day_is_dead(waited: int, ends: bool) -> None:
    story = Story(attempts=(ATTEMPT,), unknown_since_ms=NOW - waited)
    outcome = after(UnknownTarget(ATTEMPT), story, Policy(unknown_task_ttl=86_400))
    if ends:
        assert outcome == End(State.DEAD, "unknown_task", story)
    else:
        assert outcome == TryAgain(60, story)


def test_an_unknown_task_spends_neither_retries_nor_crashes() -> None:
    outcome = after(UnknownTarget(ATTEMPT), Story(spent=3, crashes=2))
    assert isinstance(outcome, TryAgain)
    assert (outcome.story.spent, outcome.story.crashes) == (3, 2)


def test_a_worker_that_knows_the_task_resets_the_time_of_being_unknown() -> None:
    """Else a job that retries for days would die at the first old worker it meets after a deploy."""
    story = Story(attempts=(ATTEMPT,), unknown_since_ms=NOW - DAY)
    failed = after(TimedOut(ATTEMPT), story)
    assert isinstance(failed, TryAgain)
    outcome = after(UnknownTarget(ATTEMPT), failed.story, now_ms=NOW + DAY)
    assert isinstance(outcome, TryAgain)
    assert (outcome.delay, outcome.story.unknown_since_ms) == (1, NOW + DAY)
