"""What a worker and its child processes say to each other: msgpack over one pipe, so that nothing is ever unpickled."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from relevo.engine.job import Attempt
from relevo.engine.message import Headers

#: What the parent decides on. The same signals reach a child by way of its terminal or control group.
PARENTS_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


# From the parent.
class Function(Struct, frozen=True, tag=True):
    """Import this function: the attempts that follow are made with it."""

    module: str
    name: str
    target: str
    #: It handles messages: one struct takes all of a message's data.
    is_action: bool = False
    #: `module:attribute` of the app, to be imported before the function; '': the task is found in its module.
    app: str = ""


class Apart(Struct, frozen=True):
    """What a child needs from its start, apart from its arguments and its environment; the first message."""

    #: Variables that are not in its environment.
    variables: dict[str, str]
    #: Lines that jobs print carry the job.
    marks_output: bool = False


class KeptAt(Struct, frozen=True):
    """Where checkpoints are kept. Sent by the parent: the child's own app may have been made with other settings."""

    url: str | None
    data_dir: str
    #: of the queue
    address: str
    connect_timeout: float
    call_timeout: float
    #: bytes of one checkpoint
    most: int
    #: what they are signed with, and for which place; (): they are not
    signing_keys: tuple[str, ...] = ()
    place: str = ""


class Order(Struct, frozen=True, tag=True, kw_only=True):
    """Make one attempt."""

    number: int
    function: Function
    args: bytes
    kwargs: bytes
    id: str
    queue: str
    attempt: int
    history: tuple[Attempt, ...]
    worker: str
    job_name: str
    tenant: str
    tags: tuple[str, ...]
    retries_left: int
    flow: str
    message_headers: Headers | None
    headers: dict[str, str] | None
    deadline_ms: int | None
    deadline_at: float
    #: Bytes a result may have; None: it is not kept.
    result_max: int | None
    token: int
    kept_at: KeptAt
    #: Of the run's span, where traces are on.
    traceparent: str = ""
    #: It is a coroutine function for the event loop; only a child that runs several jobs has one.
    on_loop: bool = False


class Pause(Struct, frozen=True, tag=True):
    """The worker is stopping: the attempt of this number may end where its checkpoints are."""

    number: int


class Stop(Struct, frozen=True, tag=True):
    """The attempt of this number shall end now. Only for a child that runs several; another one is killed."""

    number: int


class Leave(Struct, frozen=True, tag=True):
    """No more orders: leave the app's lifespan and end."""


# From the child. The first two may come late, from a thread that a job left behind: the number tells.
class Output(Struct, frozen=True, tag=True):
    """A job printed or logged."""

    number: int
    data: bytes


class Progressed(Struct, frozen=True, tag=True):
    """A job reported its progress."""

    number: int
    fraction: float
    message: str


class Ready(Struct, frozen=True, tag=True):
    """The child is up, or the function was found: go on."""

    #: It has entered the app's lifespan, which wants to be left.
    has_lifespan: bool = False


class Done(Struct, frozen=True, tag=True):
    """The function returned."""

    result: bytes = b""
    not_kept: str = ""
    #: It has written checkpoints, which end with the job.
    carries: bool = False


class Failed(Struct, frozen=True, tag=True):
    """The function raised, or could not be called."""

    error: str
    message: str
    traceback: str
    permanent: bool = False


class Decided(Struct, frozen=True, tag=True):
    """The function gave its own verdict."""

    kind: Literal["retry", "snooze", "cancel"]
    reason: str
    delay: float | None = None


class Paused(Struct, frozen=True, tag=True):
    """The function was interrupted, and can go on from its checkpoints."""

    message: str


Answer: TypeAlias = Ready | Done | Failed | Decided | Paused


class Answered(Struct, frozen=True, tag=True):
    """The answer of one attempt, from a child that runs several."""

    number: int
    answer: Answer


ToChild: TypeAlias = Function | Order | Pause | Stop | Leave
FromChild: TypeAlias = Output | Progressed | Answered | Answer
read_apart: Callable[[bytes], Apart] = msgspec.msgpack.Decoder(Apart).decode
read_order: Callable[[bytes], ToChild] = msgspec.msgpack.Decoder(ToChild).decode
read_answer: Callable[[bytes], FromChild] = msgspec.msgpack.Decoder(FromChild).decode
write = msgspec.msgpack.Encoder().encode
