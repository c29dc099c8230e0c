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

#: Signatures of its task that may refuse a job before it is given up: there are never so many versions at once.
MOST_REFUSALS = 16


class Policy(Struct, frozen=True, kw_only=True):
    """What a task's and a job's options say about failures. Times in seconds."""

    retries: int = 3
    backoff: Backoff = Backoff()
    retry_on: Errors = ()
    give_up_on: Errors = ()
    max_crashes: int = 3
    unknown_task_ttl: float = 86400.0
    breaker: Breaker | None = None


class Route(Struct, frozen=True):
    """What to look for in the offers of other workers (see `worker/offers.py`)."""

    target: str
    #: Of the target at this worker; '': it has none.
    signature: str = ""


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
    route: Route


class Refused(Struct, frozen=True):
    """This worker's version of the task does not take it; another version may."""

    reason: str
    attempt: Attempt
    route: Route


class Unrunnable(Struct, frozen=True):
    """It can never run: an unreadable body, a signature that is not right, inputs that are gone."""

    reason: str
    attempt: Attempt


class CancelAsked(Struct, frozen=True):
    """Somebody cancelled it."""


class TooLate(Struct, frozen=True):
    """Its time ran out before it could start."""


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


class Reroute(Struct, frozen=True):
    """For a worker of another build, for `wait` seconds at the most."""

    wait: float
    story: Story
    target: str
    #: What becomes of it if no live worker would take it; None: it waits for one.
    otherwise: End | None = None


class End(Struct, frozen=True):
    """Dead, cancelled or expired."""

    state: State
    reason: str
    story: Story = Story()


Outcome: TypeAlias = Finish | TryAgain | GiveBack | Reroute | End


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
        case UnknownTarget(attempt, route):
            return _unknown(story, attempt, route, policy, now_ms)
        case Refused(reason, attempt, route):
            return _refused(story, reason, attempt, route, policy)
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


def _unknown(story: Story, attempt: Attempt, route: Route, policy: Policy, now_ms: int) -> Outcome:
    """Let it wait for a worker that knows it: during a deploy there are old and new ones."""
    since = story.unknown_since_ms or now_ms
    left_ms = policy.unknown_task_ttl * 1000 - (now_ms - since)
    if left_ms < 0 or len(story.refused_by) >= MOST_REFUSALS:
        return End(State.DEAD, "unknown_task", story)
    told = story if story.unknown_since_ms else story.told(attempt)  # once: who said so first, and when
    told = msgspec.structs.replace(told, unknown_since_ms=since, refused_by=_refusals(story, route))
    return Reroute(left_ms / 1000, told, route.target)


def _refused(story: Story, reason: str, attempt: Attempt, route: Route, policy: Policy) -> Outcome:
    """Offer it to workers that have another version of the task. If none lives, it is given up."""
    told = story.told(attempt)
    end = End(State.DEAD, reason, told)
    if len(story.refused_by) >= MOST_REFUSALS:
        return end
    told = msgspec.structs.replace(told, refused_by=_refusals(story, route))
    return Reroute(policy.unknown_task_ttl, told, route.target, end)


def _refusals(story: Story, route: Route) -> tuple[str, ...]:
    return tuple(sorted({*story.refused_by, route.signature} - {""}))
