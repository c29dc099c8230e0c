"""Captures what a job prints or logs, for the record of its attempt.

The jobs of a worker process share one `sys.stdout`, one `sys.stderr` and one root logger. While
`Installed` is active, these three look up the capture in a context variable. Every asyncio task and
every thread has its own context, so outputs do not mix; tasks and threads that a job starts with
`asyncio.create_task` or `asyncio.to_thread` inherit its context and are captured with it.

Not captured: output of a plain `threading.Thread` or a subprocess. It goes to the real streams.
"""

from __future__ import annotations

import logging
import sys
from codecs import utf_8_decode
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from threading import Lock, RLock
from types import TracebackType
from typing import Any, ClassVar, Self, TextIO, cast

import msgspec

from relevo.worker.output_lines import Lines

_PIECE = 65_536  # characters or bytes added at once: a huge write is never copied whole


class Capture(msgspec.Struct, eq=False, gc=False):
    """The output of one attempt: all of it up to `limit` bytes, else its beginning and its end.

    A quarter of the limit goes to the beginning and the rest to the end, where failures are
    explained; a line between gives the number of bytes left out. Thread-safe. `changed` is True if
    there were writes since the last `text()`.
    """

    # Every attempt makes one and most never print. So it is a struct, created in C and (without
    # cycles) not tracked by the garbage collector; lock and buffer are made at the first write.
    limit: int
    changed: bool = False
    #: What was printed and waits for the end of its line before it goes to the real streams.
    lines: Lines | None = None
    _kept: _Kept | None = None

    def write(self, text: str) -> None:
        """Add text; a lone surrogate, which cannot be stored, is written as `\\udc80`."""
        if not text:
            return
        kept = self._kept or self._begin()
        with kept.lock:
            if len(text) <= _PIECE:
                kept.add(text.encode("utf-8", "backslashreplace"))
            else:
                for start in range(0, len(text), _PIECE):
                    kept.add(text[start : start + _PIECE].encode("utf-8", "backslashreplace"))
            self.changed = True

    def write_bytes(self, data: bytes | memoryview) -> None:
        """Add raw bytes, so that a character written in two parts stays intact."""
        if not data:
            return
        kept = self._kept or self._begin()
        with kept.lock:
            for start in range(0, len(data), _PIECE):
                kept.add(data[start : start + _PIECE])
            self.changed = True

    def text(self) -> str:
        """The output until now; resets `changed`."""
        kept = self._kept
        if kept is None:
            return ""
        with kept.lock:
            self.changed = False
            return kept.text()

    def forward(self, real: Any, text: str | bytes | memoryview, *, is_marked: bool) -> None:
        """Pass on to a real stream what ends a line; what does not waits for its end."""
        lines = self.lines
        if lines is None:
            with _FIRST_WRITE:
                lines = self.lines = self.lines or Lines(is_marked=is_marked)
        try:
            lines.put(real, bytes(text) if isinstance(text, memoryview) else text)
        except Exception:  # noqa: BLE001, S110 - a closed pipe or a narrow encoding is not the job's fault
            pass

    def end(self) -> None:
        """The attempt has ended: its last line goes to the real streams, too."""
        if self.lines is not None:
            self.lines.end()

    def _begin(self) -> _Kept:
        with _FIRST_WRITE:
            if self._kept is None:
                self._kept = _Kept(self.limit)
            return self._kept


#: The worker's own logger: its records are not part of a job's output.
WORKER_LOG = "relevo.worker"
# Shared by all captures, guards the creation of a buffer: two threads of one job may both be first.
_FIRST_WRITE = RLock()


class _Kept:
    """The first and the last bytes of a text of any length, in bounded memory."""

    __slots__ = ("data", "head", "limit", "lock", "tail", "total")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.head = limit // 4
        self.tail = limit - self.head
        self.data = bytearray()
        self.total = 0
        # Re-entrant: a signal handler or a finaliser may print in the middle of a write.
        self.lock = RLock()

    def add(self, piece: bytes | memoryview) -> None:
        self.data += piece
        self.total += len(piece)
        # Cut at twice the limit, not at each write: the bytes moved stay proportional to those written.
        if len(self.data) > 2 * self.limit:
            del self.data[self.head : len(self.data) - self.tail]

    def text(self) -> str:
        if self.total <= self.limit:
            return self.data.decode("utf-8", "replace")
        # Not final: a character cut at the end of the head is left out, not replaced.
        head, head_used = utf_8_decode(self.data[: self.head], "replace", False)
        tail = _from_next_character(self.data[len(self.data) - self.tail :])
        line_end = "\n" if head and not head.endswith("\n") else ""
        left_out = self.total - head_used - len(tail)
        return f"{head}{line_end}… {left_out:,} bytes left out …\n{tail.decode('utf-8', 'replace')}"


def _from_next_character(data: bytearray) -> bytearray:
    """The data without the rest of a character whose beginning was cut off: at most three bytes."""
    start = 0
    while start < min(3, len(data)) and data[start] & 0b1100_0000 == 0b1000_0000:
        start += 1
    return data[start:]


current: ContextVar[Capture | None] = ContextVar("relevo_capture", default=None)
"""The capture of the current attempt; set by the executor."""


class _Stream:
    """Replaces `sys.stdout` or `sys.stderr`; other attributes are those of the real stream."""

    def __init__(self, real: TextIO | None, *, forward: bool, marked: bool) -> None:
        self._real = real  # None in a process without a console
        self._forward = forward
        self._marked = marked
        self.buffer = _Buffer(real, forward=forward, marked=marked)

    def write(self, text: str) -> int:
        capture = current.get()
        if capture is None:
            return len(text) if self._real is None else self._real.write(text)
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        capture.write(text)
        if self._forward and self._real is not None:
            capture.forward(self._real, text, is_marked=self._marked)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        _flush(self._real)

    def close(self) -> None:
        """Only flush: the stream belongs to the whole worker, not to the job that closes it."""
        self.flush()

    def isatty(self) -> bool:
        try:
            return self._real is not None and self._real.isatty()
        except ValueError:  # closed
            return False

    @property
    def encoding(self) -> str:
        return getattr(self._real, "encoding", None) or "utf-8"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


class _Buffer:
    """The `.buffer` of a replaced stream: takes bytes."""

    def __init__(self, real: TextIO | None, *, forward: bool, marked: bool) -> None:
        self._real = real
        self._forward = forward
        self._marked = marked

    def write(self, data: bytes | bytearray | memoryview) -> int:
        view = memoryview(data).cast("B")
        capture = current.get()
        if capture is None:
            self._pass_on(view)
            return len(view)
        capture.write_bytes(view)
        if self._forward and self._real is not None:
            sink = _sink(self._real)
            text = view if sink is not None else bytes(view).decode("utf-8", "replace")
            capture.forward(self._real if sink is None else sink, text, is_marked=self._marked)
        return len(view)

    def _pass_on(self, view: memoryview) -> None:
        if self._real is None:
            return
        sink = _sink(self._real)
        if sink is None:
            self._real.write(bytes(view).decode("utf-8", "replace"))
        else:
            sink.write(view)

    def writelines(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        _flush(getattr(self._real, "buffer", self._real))

    def close(self) -> None:
        self.flush()

    def __getattr__(self, name: str) -> object:
        return getattr(getattr(self._real, "buffer", self._real), name)


def _sink(real: TextIO) -> Any:
    """Where bytes go, looked up each time: `detach` may have removed it, and a StringIO has none."""
    try:
        return getattr(real, "buffer", None)
    except ValueError:  # detached
        return None


def _flush(real: TextIO | None) -> None:
    if real is None:
        return
    try:
        real.flush()
    except Exception:
        if current.get() is None:
            raise


class _Handler(logging.Handler):
    """Writes each record that reaches the root logger to the capture of the job that logged it."""

    def __init__(self, *, forward: bool) -> None:
        super().__init__()
        self._forward = forward
        self.setFormatter(logging.Formatter("%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s", "%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        others = list(self._others(record))
        capture = None if record.name == WORKER_LOG else current.get()
        # A handler created while this is installed prints to the replaced stream: do not log twice.
        if capture is not None and not any(_prints_to_stand_in(other, record) for other in others):
            capture.write(self._line(record))
        if not others and (capture is None or self._forward):
            self._last_resort(record)

    def _others(self, record: logging.LogRecord) -> Iterator[logging.Handler]:
        """The other handlers that receive the record."""
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            yield from (handler for handler in logger.handlers if handler is not self)
            logger = logger.parent if logger.propagate else None

    def _line(self, record: logging.LogRecord) -> str:
        try:
            return f"{self.format(record)}\n"
        except Exception as error:  # noqa: BLE001 - any argument's __str__ runs here
            where = f"{record.filename}:{record.lineno}"
            why = f"not shown, formatting failed with {type(error).__name__}"
            return f"{record.levelname} {record.name}: {why} ({where})\n"

    def _last_resort(self, record: logging.LogRecord) -> None:
        """Print the record as Python does without any handler: this handler must not hide a warning."""
        handler = logging.lastResort
        if handler is None or record.levelno < handler.level:
            return
        token = current.set(None)
        try:
            handler.handle(record)
        finally:
            current.reset(token)


def _prints_to_stand_in(handler: logging.Handler, record: logging.LogRecord) -> bool:
    return isinstance(getattr(handler, "stream", None), _Stream) and record.levelno >= handler.level


class Installed:
    """Routes stdout, stderr and logging of this process to the captures, for as long as it is entered.

    May be nested: the first entry installs, the last exit restores. With `forward` what jobs print
    also goes to the real streams, in whole lines, and with `marked` each with the job; log records do not, since the
    app's own handlers print them.

        with Installed():
            token = current.set(capture)
            ...
    """

    # The streams belong to the process, so the count of entries does, too.
    _lock: ClassVar = Lock()
    _entered: ClassVar[int] = 0
    _routing: ClassVar[_Routing | None] = None
    #: In a child process: what its parent does.
    marks: ClassVar[bool] = False

    def __init__(self, *, forward: bool = True, marked: bool = False) -> None:
        self._forward = forward
        self._marked = marked

    def __enter__(self) -> Self:
        with Installed._lock:
            Installed._entered += 1
            if Installed._routing is None:
                Installed._routing = _Routing(forward=self._forward, marked=self._marked or Installed.marks)
        return self

    @classmethod
    def is_marked(cls) -> bool:
        """Whether lines that jobs print are passed on with their job; child processes do likewise."""
        return cls._routing is not None and cls._routing.marked

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with Installed._lock:
            Installed._entered -= 1
            if Installed._entered == 0 and Installed._routing is not None:
                Installed._routing.undo()
                Installed._routing = None


class _Routing:
    """The replaced streams, and the original ones."""

    def __init__(self, *, forward: bool, marked: bool) -> None:
        self.marked = marked
        self._before = sys.stdout, sys.stderr
        self._stdout = cast(TextIO, _Stream(sys.stdout, forward=forward, marked=marked))
        self._stderr = cast(TextIO, _Stream(sys.stderr, forward=forward, marked=marked))
        self._handler = _Handler(forward=forward)
        sys.stdout, sys.stderr = self._stdout, self._stderr
        logging.getLogger().addHandler(self._handler)

    def undo(self) -> None:
        # A stream that other code has put over ours stays; ours then only forwards.
        if sys.stdout is self._stdout:
            sys.stdout = self._before[0]
        if sys.stderr is self._stderr:
            sys.stderr = self._before[1]
        logging.getLogger().removeHandler(self._handler)
        self._handler.close()
