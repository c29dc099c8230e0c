"""Plans: store operations as values.

A store operation is a `Call` (one script or one command and how to read its reply), or a generator of calls where a
sequence is needed. A plan may also ask user code, or pause (`Ask`). Nothing here does I/O: two small drivers perform
plans, one blocking (`blocking.py`), one on asyncio (`aio.py`), so that no logic is written twice and the blocking API
runs no event loop. What goes wrong in a step is raised in the plan, which may clean up or go on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from functools import lru_cache
from typing import Any, Generic, TypeAlias, TypeVar

import hiredis
from msgspec import Struct

from relevo.store.call_numbers import Try
from relevo.store.scripts import Script, plain_command

T = TypeVar("T")
Argument: TypeAlias = bytes | str | int | float


def as_is(reply: Any) -> Any:
    """Leave a reply as the server gave it."""
    return reply


class Call(Struct, Generic[T], frozen=True, gc=False):
    """One round trip."""

    args: Sequence[Argument]
    decode: Callable[[Any], T] = as_is
    script: Script | None = None
    keys: tuple[bytes, ...] = ()
    #: After a lost connection it is unknown whether a call was carried out. It is repeated only if that does no harm.
    repeatable: bool = True
    #: Index in `args` of a flag that is set to 1 when the call is repeated.
    again: int | None = None
    #: Its connection numbers it, so that it is carried out once however often it is sent: see numbers.py.
    numbered: bool = False
    #: A numbered call that counts only while its caller waits, although others of its session counted before it. For
    #: calls that another process may make as well, and that are rare enough to read the clock each time.
    timed: bool = False
    #: Earlier tries of a numbered call, taken over from a previous call.
    before: str = ""
    #: Whether the user may make the same request again when the outcome of this one is unknown.
    is_named: bool = False

    def command(
        self, numbered: Try | None = None, *, repeated: bool = False, text: bool = False
    ) -> tuple[Argument, ...]:
        """The command as it goes over the wire; `text` sends the whole script instead of its digest."""
        args = self.args
        if repeated and self.again is not None:
            args = [*args[: self.again], 1, *args[self.again + 1 :]]
        if self.script is None:
            return tuple(args)
        verb, code = (b"EVAL", self.script.text) if text else (b"EVALSHA", self.script.sha)
        return (verb, code, len(self.keys), *self.keys, *(numbered or ()), *args)

    def packed(self, numbered: Try | None = None, *, repeated: bool = False) -> bytes:
        """The same in bytes."""
        command = self.command(numbered, repeated=repeated)
        if self.script is None:
            whole: bytes = hiredis.pack_command(command)  # type: ignore[arg-type]
            return whole
        # Most of a script's command are its keys, which are the same for each call to a queue.
        rest: bytes = hiredis.pack_command(command[3 + len(self.keys) :])  # type: ignore[arg-type]
        return b"*%d\r\n%b%b" % (len(command), _head(self.script.sha, self.keys), rest[rest.index(b"\n") + 1 :])

    @property
    def numbering(self) -> tuple[bytes | None, str, bool]:
        """What `Numbers.next` needs to number its first try."""
        return self.route, self.before, self.timed

    def guarded(self) -> Call[T]:
        """The same plain command by a script, which sets a key of another type aside (store/lua/include/guard.lua)."""
        assert self.script is None
        assert self.route is not None
        return Call(self.args, self.decode, plain_command(), (self.route,), self.repeatable, self.again)

    @property
    def route(self) -> bytes | None:
        """A key on the cluster node to send it to; None: any node."""
        if self.keys:
            return self.keys[0]
        # Plain commands of the store take their only key first; INFO, PING and their like take none.
        return self.args[1] if len(self.args) > 1 and isinstance(self.args[1], bytes) else None


@lru_cache(maxsize=10_000)
def _head(sha: bytes, keys: tuple[bytes, ...]) -> bytes:
    """The packed command of a script up to its arguments, without the number of its parts."""
    packed: bytes = hiredis.pack_command((b"EVALSHA", sha, len(keys), *keys))  # type: ignore[arg-type]
    return packed[packed.index(b"\n") + 1 :]


class Ahead(Struct, Generic[T], frozen=True):
    """Many calls, to any queues, each sent while the server works on the one before.

    Returns a list of their results. All of them must be repeatable: after a broken connection those in flight are.
    """

    calls: Iterator[Call[T]]
    #: Calls sent before the reply to the first of them is read. Many where each is short, so that the round trips to a
    #: distant server overlap; one where each is long, since other clients wait for all that are in flight.
    depth: int = 1


class Ask(Struct, Generic[T], frozen=True):
    """A step that calls something else than the server, such as a hook of the user, or that waits."""

    #: For the blocking driver.
    block: Callable[[], T]
    #: For the asyncio driver.
    wait: Callable[[], Awaitable[T]]


Steps: TypeAlias = Generator[Call[Any] | Ahead[Any] | Ask[Any], Any, T]
Plan: TypeAlias = Call[T] | Steps[T]
