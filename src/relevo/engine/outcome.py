"""Decides the outcome of every attempt, in one place.

`decide` maps a job's story, the result of its attempt, its policy and the time to an outcome. It is pure: the worker
performs the outcome with one script. Recovery uses the same function, since an expired lease is one more result.
"""

from __future__ import annotations

from typing import TypeAlias, assert_never

import msgspec
from msgspec import Struct

from relevo.engine.backoff import Backoff
from relevo.engine.job import Attempt, State, Story
from relevo.engine.options import Errors
from relevo.engine.verdicts import Cancel, Retry, Snooze

#: A job is given up after this many signatures of its task refused it; far fewer versions run at the same time.
MOST_REFUSALS = 16


class Policy(Struct, frozen=True, kw_only=True):
    """The options of a task and a job that govern failures. Times in seconds."""

    retries: int = 3
    backoff: Backoff = Backoff()
    retry_on: Errors = ()
    give_up_on: Errors = ()
    max_crashes: int = 3
    unknown_task_ttl: float = 86400.0


class Route(Struct, frozen=True):
    """The task to look for in the offers of other workers (see `worker/offers.py`)."""

    target: str
    #: Signature of the target at this worker; '': unknown here.
    signature: str = ""


# What can happen to an attempt.
class Returned(Struct, frozen=True):
    """The function returned."""


class Raised(Struct, frozen=True):
    """The function raised an error or a verdict (`Retry`, `Snooze`, `Cancel`)."""

    error: BaseException
    attempt: Attempt


class Failed(Struct, frozen=True):
    """The function raised in another process, which applied the task's error filters."""

    attempt: Attempt
    permanent: bool


class TimedOut(Struct, frozen=True):
    """The attempt exceeded its time limit."""

    attempt: Attempt


class LeaseLost(Struct, frozen=True):
    """Its worker stopped renewing the lease, or the process died in which it ran beside other suspects."""

    attempt: Attempt
    #: Number of suspects in that process.
    among: int = 1


class Interrupted(Struct, frozen=True):
    """The worker is shutting down and returns the job unfinished."""


class UnknownTarget(Struct, frozen=True):
    """This worker does not have the task; another worker may."""

    attempt: Attempt
    route: Route


class Refused(Struct, frozen=True):
    """This worker's version of the task refused the job; another version may accept it."""

    reason: str
    attempt: Attempt
    route: Route


class Unrunnable(Struct, frozen=True):
    """The job can never run: unreadable body, wrong signature, missing inputs."""

    reason: str
    attempt: Attempt


class CancelAsked(Struct, frozen=True):
    """The job was cancelled."""


class TooLate(Struct, frozen=True):
    """The job expired before it started."""


Happened: TypeAlias = (
    Returned
    | Raised
    | Failed
    | TimedOut
    | LeaseLost
    | Interrupted
    | UnknownTarget
    | Refused
    | Unrunnable
    | CancelAsked
    | TooLate
)


# The outcomes of a job.
class Finish(Struct, frozen=True):
    """Done."""


class TryAgain(Struct, frozen=True):
    """Scheduled again after a delay in seconds."""

    delay: float
    story: Story


class GiveBack(Struct, frozen=True):
    """Ready again, ahead of later jobs."""

    story: Story | None = None


class Reroute(Struct, frozen=True):
    """Held for a worker of another build, for at most `wait` seconds."""

    wait: float
    story: Story
    target: str
    #: The outcome if no live worker accepts it; None: it waits for one.
    otherwise: End | None = None


class End(Struct, frozen=True):
    """Dead, cancelled or expired."""

    state: State
    reason: str
    story: Story = Story()


Outcome: TypeAlias = Finish | TryAgain | GiveBack | Reroute | End


def decide(story: Story, happened: Happened, policy: Policy, now_ms: int, chance: float) -> Outcome:
    """The outcome of a job with this story. `chance` in 0..1 places a delay inside its jitter."""
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
            return End(State.DEAD, reason, story.with_attempt(attempt))
        case LeaseLost(attempt, among) if among > 1:  # the culprit is unknown: retry in halves
            return GiveBack(story.with_attempt(attempt, among=among))
        case LeaseLost(attempt):
            extended = story.with_attempt(attempt, crashes=1)
            if extended.crashes >= policy.max_crashes:
                return End(State.DEAD, "poison", extended)
            return GiveBack(extended)
        case UnknownTarget(attempt, route):
            return _unknown(story, attempt, route, policy, now_ms)
        case Refused(reason, attempt, route):
            return _refused(story, reason, attempt, route, policy)
        case Raised(Snooze() as verdict, attempt):
            return TryAgain(verdict.delay, story.with_attempt(attempt))
        case Raised(Cancel() as verdict, attempt):
            return End(State.CANCELLED, verdict.reason or "cancelled by the task", story.with_attempt(attempt))
        case Raised(Retry() as verdict, attempt):
            return _again(story.with_attempt(attempt, spent=1), policy, chance, verdict.delay)
        case Raised(error, attempt):
            permanent = isinstance(error, policy.give_up_on)
            if permanent or (policy.retry_on and not isinstance(error, policy.retry_on)):
                return End(State.DEAD, "permanent", story.with_attempt(attempt, spent=1))
            return _again(story.with_attempt(attempt, spent=1), policy, chance, None)
        case Failed(attempt, permanent):
            extended = story.with_attempt(attempt, spent=1)
            return End(State.DEAD, "permanent", extended) if permanent else _again(extended, policy, chance, None)
        case TimedOut(attempt):
            return _again(story.with_attempt(attempt, spent=1), policy, chance, None)
        case _:
            assert_never(happened)


def speaks_against_task(happened: Happened, outcome: Outcome) -> bool:
    """Whether a breaker counts this attempt as a failure.

    Permanent errors are faults of the job; snoozes, cancellations and lost workers do not indicate a broken dependency.
    """
    match happened:
        case Raised(Snooze()):
            return False
        case Raised() | Failed() | TimedOut():
            is_given_up = isinstance(outcome, End) and outcome.reason == "retries_exhausted"
            return is_given_up or isinstance(outcome, TryAgain)
        case _:
            return False


def _again(story: Story, policy: Policy, chance: float, delay: float | None) -> Outcome:
    if story.spent > policy.retries:
        return End(State.DEAD, "retries_exhausted", story)
    return TryAgain(policy.backoff.delay(story.spent, chance) if delay is None else delay, story)


def _unknown(story: Story, attempt: Attempt, route: Route, policy: Policy, now_ms: int) -> Outcome:
    """Wait for a worker that has the task: old and new workers run side by side during a deploy."""
    since = story.unknown_since_ms or now_ms
    left_ms = policy.unknown_task_ttl * 1000 - (now_ms - since)
    if left_ms < 0 or len(story.refused_by) >= MOST_REFUSALS:
        return End(State.DEAD, "unknown_task", story)
    extended = story if story.unknown_since_ms else story.with_attempt(attempt)  # records only the first such attempt
    extended = msgspec.structs.replace(extended, unknown_since_ms=since, refused_by=_refusals(story, route))
    return Reroute(left_ms / 1000, extended, route.target)


def _refused(story: Story, reason: str, attempt: Attempt, route: Route, policy: Policy) -> Outcome:
    """Offer the job to live workers with another version of the task; if there is none, give it up."""
    extended = story.with_attempt(attempt)
    end = End(State.DEAD, reason, extended)
    if len(story.refused_by) >= MOST_REFUSALS:
        return end
    extended = msgspec.structs.replace(extended, refused_by=_refusals(story, route))
    return Reroute(policy.unknown_task_ttl, extended, route.target, end)


def _refusals(story: Story, route: Route) -> tuple[str, ...]:
    return tuple(sorted({*story.refused_by, route.signature} - {""}))
