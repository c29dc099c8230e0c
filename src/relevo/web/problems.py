"""Error answers: a status, the name of the error, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct, ValidationError

from relevo.errors import (
    ConfigurationError,
    JobError,
    OptionError,
    PayloadError,
    PayloadTooLarge,
    RelevoError,
    StoreError,
    UnknownJob,
    UnknownSchedule,
    message_of,
)
from relevo.text.nearest import did_you_mean

#: Seconds after which a client should retry when the queues' server is unreachable: as long as was tried here.
RETRY_AFTER = "5"


class Problem(Struct, frozen=True, omit_defaults=True):
    """An error answer (RFC 9457); `error` is a name from `relevo.errors`, or one of HTTP's."""

    error: str
    message: str
    status: int
    #: The message again, under its name in RFC 9457.
    detail: str
    #: The part of the request at fault, if there is one: an argument of the task, a name in the body.
    argument: str = ""


class Refused(Exception):
    """A request that fails, with the error to answer."""

    def __init__(
        self,
        status: int,
        error: str,
        message: str,
        headers: Mapping[str, str] | None = None,
        *,
        argument: str = "",
        who: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error = error
        self.headers = dict(headers or {})
        self.argument = argument
        #: The name of the token that was sent, if it is known.
        self.who = who

    @property
    def problem(self) -> Problem:
        """The body of the answer."""
        message = message_of(self)
        return Problem(self.error, message, self.status, message, self.argument)


#: The first match counts, so subclasses stand before their bases.
_STATUS: tuple[tuple[type[RelevoError], int], ...] = (
    (UnknownJob, 404),
    (UnknownSchedule, 404),
    (PayloadTooLarge, 413),
    (PayloadError, 422),
    (JobError, 409),
    (OptionError, 422),
    (StoreError, 503),
    (ConfigurationError, 500),
)


def refusal_of(error: RelevoError) -> Refused:
    """An error of relevo as an answer."""
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    # The documented name, not that of a subclass inside the store.
    name = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "relevo.errors")
    headers = {"Retry-After": RETRY_AFTER} if status == 503 else None
    return Refused(status, name, message_of(error), headers, argument=getattr(error, "argument", ""))


def misfit(error: ValidationError, known: Iterable[str], in_query: Iterable[str] = ()) -> Refused:
    """422: the request does not have the expected form. `in_query`: names that belong there, not in the body."""
    what, _, place = str(error).partition(" - at ")
    place = place.strip("`").removeprefix("$").lstrip(".")
    if unknown := re.search("unknown field `(.*)`", what, re.DOTALL):
        if unknown[1] in in_query:
            return invalid(
                f"{unknown[1]!r} belongs in the query, not in the body: ?{unknown[1]}=…", argument=unknown[1]
            )
        known = sorted(known)
        near = did_you_mean(unknown[1], known) or (f"; there is {', '.join(known)}" if known else "; there is none")
        return invalid(f"unknown name {unknown[1]!r:.60}{near}", argument=unknown[1][:60])
    return invalid(f"{place}: {what}" if place else what, argument=place)


def invalid(message: str, *, argument: str = "") -> Refused:
    """422: readable, but invalid."""
    return Refused(422, "Invalid", message, argument=argument)


def not_there(what: str, name: str, known: Iterable[str] = ()) -> Refused:
    """404: the object does not exist."""
    return Refused(404, "NotFound", f"there is no {what} {name!r:.80}{did_you_mean(name, known)}")


def conflict(message: str) -> Refused:
    """409: the state of the object does not allow it."""
    return Refused(409, "Conflict", message)
