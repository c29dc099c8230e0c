"""Reads the checkpoints of one run, and writes them while the run holds its lease."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from relevo.checkpoints.store import Kind, keep, kept
from relevo.codec import Signature
from relevo.errors import ConfigurationError, OptionError, TargetError
from relevo.store.keys import QueueKeys
from relevo.store.plan import Plan

T = TypeVar("T")

#: Seconds to wait for a server that cannot be reached: a step may have taken hours.
PATIENCE = 60.0
#: Names in one run. More names would be items of a loop, which needs only one.
NAMES_MOST = 10_000
NAME_MOST = 200  # characters
_WORDS: dict[Kind, str] = {"s": "step", "p": "iterate"}


class Interruption(BaseException):
    """Ends a run whose job continues elsewhere. A BaseException, so that a task's `except Exception` ignores it."""


def is_interruption(error: BaseException) -> bool:
    """Whether this is an Interruption, also inside the exception group of a task group."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(Interruption)[1] is None
    return isinstance(error, Interruption)


class Client(Protocol):
    """Carries out plans of the store, as the engine's client does."""

    def run(self, plan: Plan[T], *, patience: float | None = None) -> T: ...
    def arun(self, plan: Plan[T], *, patience: float | None = None) -> Coroutine[Any, Any, T]: ...


class Home(Struct, frozen=True):
    """Where the checkpoints of a job are stored."""

    client: Client
    keys: QueueKeys
    #: size limit of one checkpoint in bytes
    most: int


class Sleeper(Protocol):
    """A loop that waits for its next item and can be woken."""

    def wake(self) -> None: ...


class Keeping:
    """The checkpoints of one run; created with the first step or loop."""

    def __init__(self, home: Home, id: str, token: int, must_stop: Callable[[], bool]) -> None:
        self.home = home
        self.id = id
        self._token = token
        #: whether the job was cancelled or its worker is stopping
        self.must_stop = must_stop
        #: loops that wait for their source
        self.asleep: set[Sleeper] = set()
        self._names: set[tuple[Kind, str]] = set()

    def take(self, kind: Kind, name: str) -> None:
        """Reserve a name for this run; refuses one that is in use."""
        word = _WORDS[kind]
        if not _is_name(name):
            raise OptionError(f"{word}: a name of 1 to {NAME_MOST} printable characters is needed, found {name!r:.80}")
        if (kind, name) in self._names:
            hint = "keep its result in a variable" if kind == "s" else "two loops would share one position"
            raise ConfigurationError(
                f"{word}: the name {name!r} was used in this run already; give each call a name of its own ({hint})"
            )
        if len(self._names) >= NAMES_MOST:
            raise ConfigurationError(
                f"{word}: {NAMES_MOST:,} names are the most for one job; use iterate for many items, or several jobs"
            )
        self._names.add((kind, name))

    def free(self, kind: Kind, name: str) -> None:
        """Release the name of a call that failed, so that it may be tried again."""
        self._names.discard((kind, name))

    def read(self, kind: Kind, name: str) -> bytes | None:
        """The checkpoint of an earlier run, if any."""
        if self._token == 1:
            return None  # first attempt: there is no earlier run
        return self.home.client.run(kept(self.home.keys, self.id, kind, name), patience=PATIENCE)

    async def aread(self, kind: Kind, name: str) -> bytes | None:
        """`read` for async code."""
        if self._token == 1:
            return None
        return await self.home.client.arun(kept(self.home.keys, self.id, kind, name), patience=PATIENCE)

    def write(self, kind: Kind, name: str, value: bytes, *, patience: float = PATIENCE) -> None:
        """Write a checkpoint; raises Interruption if the lease is lost."""
        call = keep(self.home.keys, self.id, self._token, kind, name, value)
        self._confirm(self.home.client.run(call, patience=patience))

    async def awrite(self, kind: Kind, name: str, value: bytes, *, patience: float = PATIENCE) -> None:
        """`write` for async code."""
        call = keep(self.home.keys, self.id, self._token, kind, name, value)
        self._confirm(await self.home.client.arun(call, patience=patience))

    def _confirm(self, is_kept: bool) -> None:
        if not is_kept:
            raise Interruption(f"job {self.id} has lost its lease: another worker may run it")

    def wake(self) -> None:
        """Wake loops that wait for their source: the job must end."""
        for one in list(self.asleep):
            one.wake()


def _is_name(given: Any) -> bool:
    return isinstance(given, str) and 0 < len(given) <= NAME_MOST and given.isprintable()


def signature_of(func: Callable[..., Any]) -> Signature:
    """The signature by which a function's result is stored: by its annotation, else as plain JSON."""
    try:
        return Signature(func)
    except TargetError:  # built in, without a signature
        plain = Signature(_plain)
        plain.name = getattr(func, "__name__", type(func).__name__)
        return plain


def _plain() -> Any:
    """Has no types."""
