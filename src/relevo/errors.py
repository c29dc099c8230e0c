"""Every error relevo raises, drawn by who must act.

    RelevoError
    ├── ConfigurationError      you: the code or the settings are wrong
    │   ├── SettingsError           an unknown, misplaced or malformed setting
    │   ├── OptionError             an option of a task or a job is wrong
    │   ├── TargetError             a function that no worker could find again
    │   ├── WaitDeadlock            jobs in all threads of a worker wait for jobs that only it could run
    │   └── FormatError             the keys on the server are of a version that this one does not get along with
    ├── StoreError              the operator: the server or the way to it has a fault
    │   ├── ServerUnavailable       not reachable, restarting, failing over
    │   │   └── OutcomeUnknown          the connection broke: what was asked may have been done
    │   ├── OutOfMemory             the server refuses writes until memory is freed
    │   ├── ServerRefused           it answered no: authentication, ACL, read-only, broken disk
    │   ├── UnfitServer             it may delete jobs, and server_check is "strict"
    │   └── EmbeddedServerError     the embedded server cannot be started or used
    │       └── UntrustedDirectory      its data directory may be the work of another user
    ├── JobError                the caller: this job, these arguments
    │   ├── PayloadError            values that would not come back as they are
    │   │   └── PayloadTooLarge         more bytes than the limit
    │   ├── UnknownJob              no such job, or its record has ended
    │   ├── CannotChange            it has started or ended already
    │   ├── UnknownSchedule         no such schedule
    │   ├── BadSignature            its end is not signed by a key that `signing_keys` names
    │   ├── ResultTimeout           still not finished after the time you gave
    │   ├── ResultNotKept           finished, but its result was not stored
    │   ├── JobFailed               given up: a dead letter
    │   ├── JobCancelled            it was cancelled
    │   └── JobExpired              its time ran out before it could start
    └── BusError                the other service
        ├── NoResponders            no worker serves the action
        ├── RequestTimeout          no answer within the time you gave
        └── RemoteError             it answered with a fault

A message says what was wrong, what was found, and what to do.
"""

from __future__ import annotations


class RelevoError(Exception):
    """The root of all errors of relevo."""


class BlockingCallWarning(RuntimeWarning):
    """A call that waits for a job or an answer was made on a running event loop, which it blocks."""


def message_of(error: BaseException) -> str:
    """The text of an error with the notes that were added to it, such as how far an operation came."""
    return "; ".join([str(error), *getattr(error, "__notes__", ())])


class ConfigurationError(RelevoError):
    """The code or the settings are wrong; retrying does not help."""


class SettingsError(ConfigurationError):
    """A setting is unknown, misplaced or malformed."""


class OptionError(ConfigurationError):
    """An option of a task or of a job is unknown or out of range."""


class TargetError(ConfigurationError):
    """The function cannot be a job's target: no worker could find it again."""


class WaitDeadlock(ConfigurationError):
    """Jobs in all threads of this worker wait for jobs that only it could run."""


class FormatError(ConfigurationError):
    """The keys on the server were written by a version of relevo that is not compatible with this one."""


class StoreError(RelevoError):
    """The server, or the way to it, has a fault."""


class ServerUnavailable(StoreError):
    """The server cannot be reached, is starting, or is failing over."""


class OutcomeUnknown(ServerUnavailable):
    """The connection broke, and the server may have done what was asked: stored the job, or answered the request.

    `is_safe`: the same request may be made again, because its name keeps it from being done twice. Otherwise look
    whether it was done before you repeat it. It may still arrive for
    ten times `call_timeout`; after that the server refuses it.
    """

    def __init__(self, message: str, *, is_safe: bool = False, tries: str = "") -> None:
        super().__init__(message)
        self.is_safe = is_safe
        #: Tries of the call, for a call that goes on with it; internal.
        self.tries = tries


class OutOfMemory(StoreError):
    """The server is at its memory limit and refuses new jobs."""


class ServerRefused(StoreError):
    """The server answered with a refusal."""


class UnfitServer(StoreError):
    """The server is set up to delete jobs when its memory is full, and `server_check` is "strict"."""


class EmbeddedServerError(StoreError):
    """The embedded server cannot be started or must not be used."""


class UntrustedDirectory(EmbeddedServerError):
    """The data directory belongs to another user, or this user neither made it nor trusted it."""


class JobError(RelevoError):
    """Something about one job."""


class PayloadError(JobError):
    """Arguments or a result would not come back as they were given. `argument` names the part at fault, if known."""

    def __init__(self, message: str, *, argument: str = "") -> None:
        super().__init__(message)
        self.argument = argument


class PayloadTooLarge(PayloadError):
    """Encoded, the value has more bytes than the limit."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(
            f"{what}: {size:,} bytes encoded, the limit is {limit:,}. "
            "Store the data elsewhere and pass a reference, or raise `max_payload`."
        )
        self.size = size
        self.limit = limit


class UnknownJob(JobError):
    """No such job: it never existed, or its record has ended."""


class CannotChange(JobError):
    """The job cannot be changed. `code`: 'started', 'ended', 'unreadable', or 'other' (others change it as well)."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class UnknownSchedule(JobError):
    """No such schedule: it never was, or it was removed."""


class BadSignature(JobError):
    """What the server holds of a job's end bears no good signature: what became of the job is not known."""


class ResultTimeout(JobError, TimeoutError):
    """The job has not finished within the time given; it goes on."""


class ResultNotKept(JobError):
    """The job is done, but its result was not stored."""


class JobFailed(JobError):
    """The job was given up and is a dead letter."""

    def __init__(self, message: str, *, reason: str = "", error: str = "", traceback: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.error = error
        self.traceback = traceback


class JobCancelled(JobError):
    """The job was cancelled before it could finish."""


class JobExpired(JobError):
    """The job's time ran out before it could start."""


class BusError(RelevoError):
    """The other service did not answer, or answered with a fault."""


class NoResponders(BusError):
    """No process that lives serves the action."""


class RequestTimeout(BusError, TimeoutError):
    """The answer did not come within the time given; the request was cancelled."""


class RemoteError(BusError):
    """The other service tried and failed, or refused. `type` is its error's name; `retryable`: it may go well later."""

    def __init__(
        self, message: str, *, type: str = "", reason: str = "", retryable: bool = False, traceback: str = ""
    ) -> None:
        super().__init__(message)
        self.type = type
        self.reason = reason
        self.retryable = retryable
        #: Of the other side, if its setting `remote_tracebacks` allows it.
        self.traceback = traceback
