"""The one place that chooses a job's future.

`decide` looks at a job, at what happened to it, at its policy and the time, and says what becomes of it. It is pure:
the worker performs what it says with one script, and recovery takes the same road, since a lease that ran out is just
another thing that happened.
"""

from __future__ import annotations

from typing import TypeAlias, assert_never

import msgspec
from msgspec import Struct

from relevo.model.backoff import Backoff
from relevo.model.breaker import Breaker
from relevo.model.job import Attempt, State, Story
from relevo.model.options import Errors
from relevo.model.verdicts import Cancel, Retry, Snooze

#: A worker that does not know a task lets the job rest this long, and longer each time, at most a minute.
UNKNOWN_REST = 1.0
UNKNOWN_REST_MAX = 60.0


class Policy(Struct, frozen=True, kw_only=True):
    """What a task's and a job's options say about failures. Times in seconds."""

    retries: int = 3
    backoff: Backoff = Backoff()
    retry_on: Errors = ()
    give_up_on: Errors = ()
    max_crashes: int = 3
    unknown_task_ttl: float = 86400.0
    breaker: Breaker | None = None


# What can happen to an attempt.
class Returned(Struct, frozen=True):
    """The function returned."""


class Raised(Struct, frozen=True):
    """The function raised; also the way a task's own verdict arrives."""

    error: BaseException
    attempt: Attempt


class Failed(Struct, frozen=True):
    """The function raised in another process, where its error was judged by the task's filters."""

    attempt: Attempt
    permanent: bool


class TimedOut(Struct, frozen=True):
    """It ran longer than it may."""

    attempt: Attempt


class LeaseLost(Struct, frozen=True):
    """Its worker fell silent: killed, cut off, or stopped; or the process died that it shared with other suspects."""

    attempt: Attempt
    #: How many suspects were in that process.
    among: int = 1


class Interrupted(Struct, frozen=True):
    """The worker is stopping and hands it back unfinished."""


class UnknownTarget(Struct, frozen=True):
    """This worker has no such task; another one may."""

    attempt: Attempt


class Unrunnable(Struct, frozen=True):
    """It can never run: an unreadable body, arguments that do not fit, a target that is not allowed."""

    reason: str
    attempt: Attempt


class CancelAsked(Struct, frozen=True):
    """Somebody cancelled it."""


class TooLate(Struct, frozen=True):
    """Its time ran out before it could start."""


Happened: TypeAlias = (
    Returned | Raised | Failed | TimedOut | LeaseLost | Interrupted | UnknownTarget | Unrunnable | CancelAsked | TooLate
)


# What can become of a job.
class Finish(Struct, frozen=True):
    """Done."""


class TryAgain(Struct, frozen=True):
    """Scheduled again after a delay in seconds."""

    delay: float
    story: Story


class GiveBack(Struct, frozen=True):
    """Ready again, before those that came later."""

    story: Story | None = None


class End(Struct, frozen=True):
    """Dead, cancelled or expired."""

    state: State
    reason: str
    story: Story = Story()


Outcome: TypeAlias = Finish | TryAgain | GiveBack | End


def decide(story: Story, happened: Happened, policy: Policy, now_ms: int, chance: float) -> Outcome:
    """What becomes of a job with this story. `chance` in 0..1 places a delay inside its jitter."""
    match happened:
        case Returned():
            return Finish()
        case Interrupted():
            return GiveBack()
        case CancelAsked():
            return End(State.CANCELLED, "cancelled", story)
        case TooLate():
            return End(State.EXPIRED, "expired", story)
        case Unrunnable(reason, attempt):
            return End(State.DEAD, reason, story.told(attempt))
        case LeaseLost(attempt, among) if among > 1:  # nobody knows which of them is to blame: they run in halves
            return GiveBack(story.told(attempt, among=among))
        case LeaseLost(attempt):
            told = story.told(attempt, crashes=1)
            if told.crashes >= policy.max_crashes:
                return End(State.DEAD, "poison", told)
            return GiveBack(told)
        case UnknownTarget(attempt):
            return _unknown(story, attempt, policy, now_ms, chance)
        case Raised(Snooze() as verdict, attempt):
            return TryAgain(verdict.delay, story.told(attempt))
        case Raised(Cancel() as verdict, attempt):
            return End(State.CANCELLED, verdict.reason or "cancelled by the task", story.told(attempt))
        case Raised(Retry() as verdict, attempt):
            return _again(story.told(attempt, spent=1), policy, chance, verdict.delay)
        case Raised(error, attempt):
            permanent = isinstance(error, policy.give_up_on)
            if permanent or (policy.retry_on and not isinstance(error, policy.retry_on)):
                return End(State.DEAD, "permanent", story.told(attempt, spent=1))
            return _again(story.told(attempt, spent=1), policy, chance, None)
        case Failed(attempt, permanent):
            told = story.told(attempt, spent=1)
            return End(State.DEAD, "permanent", told) if permanent else _again(told, policy, chance, None)
        case TimedOut(attempt):
            return _again(story.told(attempt, spent=1), policy, chance, None)
        case _:
            assert_never(happened)


def speaks_against_task(happened: Happened, outcome: Outcome) -> bool:
    """Whether an attempt failed in a way that a breaker counts.

    A permanent error is the job's own; snoozes, cancellations and lost workers say nothing about what the task needs.
    """
    match happened:
        case Raised(Snooze()):
            return False
        case Raised() | Failed() | TimedOut():
            is_given_up = isinstance(outcome, End) and outcome.reason == "retries_exhausted"
            return is_given_up or isinstance(outcome, TryAgain)
        case _:
            return False


def _again(told: Story, policy: Policy, chance: float, delay: float | None) -> Outcome:
    if told.spent > policy.retries:
        return End(State.DEAD, "retries_exhausted", told)
    return TryAgain(policy.backoff.delay(told.spent, chance) if delay is None else delay, told)


def _unknown(story: Story, attempt: Attempt, policy: Policy, now_ms: int, chance: float) -> Outcome:
    """Let it rest for a worker that knows it: during a deploy there are old and new ones."""
    since = story.unknown_since_ms or now_ms
    if now_ms - since > policy.unknown_task_ttl * 1000:
        return End(State.DEAD, "unknown_task", story)
    if not story.unknown_since_ms:  # told once: who said so first, and when
        story = msgspec.structs.replace(story.told(attempt), unknown_since_ms=since)
    rest = min(UNKNOWN_REST_MAX, UNKNOWN_REST + (now_ms - since) / 4000)
    return TryAgain(rest * (0.75 + chance / 2), story)  # at odd times: the same worker must not get it each time
