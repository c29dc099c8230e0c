"""The inside of a child process: receives a function, then attempts of it, and answers each.

The parent is `processes`. The child imports what its parent resolved and nothing else. It may be killed
at any moment, so what a job prints and how far it is goes to the parent while it runs, and not only at its end.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import faulthandler
import functools
import importlib
import inspect
import io
import logging
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypeVar

import msgspec
from msgspec import field

from relevo import settings
from relevo.bus.actions import ActionSignature
from relevo.checkpoints.keeping import Home, is_interruption
from relevo.codec import Signature
from relevo.dependencies.filling import Dependencies
from relevo.engine import context
from relevo.engine.client import Client
from relevo.engine.context import JobContext
from relevo.engine.engine import Engine
from relevo.engine.lifespan import Lifespan
from relevo.engine.options import Errors
from relevo.engine.task import Task
from relevo.engine.verdicts import Cancel, Retry, Snooze
from relevo.errors import PayloadError
from relevo.signing import Keyring, Signer
from relevo.store.keys import AppKeys, QueueKeys
from relevo.telemetry import telemetry
from relevo.worker import capture
from relevo.worker.capture import Capture
from relevo.worker.executors.child_lifespan import OwnLoop
from relevo.worker.executors.process_messages import (
    PARENTS_SIGNALS,
    Answer,
    Decided,
    Done,
    Failed,
    FromChild,
    Function,
    KeptAt,
    Leave,
    Order,
    Output,
    Pause,
    Paused,
    Progressed,
    Ready,
    Stop,
    ToChild,
    read_apart,
    read_order,
    write,
)
from relevo.worker.soft_limits import call, limited, task_frames

#: Seconds between two messages of a chatty job: the parent has other children to listen to.
SEND_EVERY = 0.1
#: So many writes are sent without delay: those of a job that says little and then hangs or crashes are all there.
SENT_AT_ONCE = 200
PIECE = 65_536  # bytes of output in one message
MESSAGE_MOST = 2_000  # characters
TRACEBACK_MOST = 32_000  # characters


#: Runs a coroutine.
Runs: TypeAlias = Callable[[Coroutine[Any, Any, Any]], Any]


class Wire:
    """The pipe to the parent."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._waiting: deque[bytes] = deque()
        self._sending = threading.Lock()
        self._is_ours = True
        self._listening = threading.Lock()
        self._words = select.poll()
        self._words.register(pipe.fileno(), select.POLLIN)
        #: the order that shall pause
        self._paused = 0

    def receive(self) -> Function | Order | Leave:
        """The next thing to do; EOFError or OSError: the parent is gone."""
        while True:
            message = self.notify()
            if not isinstance(message, Pause | Stop):  # came too late: the attempt had ended
                return message

    def notify(self) -> ToChild:
        """The next word of the parent; EOFError or OSError: it is gone."""
        return read_order(self._pipe.recv_bytes())

    def is_paused(self, number: int) -> bool:
        """Whether the parent wants this order to pause. Asked during an attempt, when it says nothing else."""
        # A job may ask from several threads; one of them listens.
        if self._paused < number and self._is_ours and self._listening.acquire(blocking=False):
            try:
                if self._words.poll(0) and isinstance(message := self.notify(), Pause):
                    self._paused = message.number
            except (EOFError, OSError):
                os._exit(0)  # as when we wait for an order
            finally:
                self._listening.release()
        return self._paused == number

    def send(self, message: FromChild) -> None:
        """Tell the parent. Safe from threads, and from a finaliser that prints in the middle of a send.

        The thread that sends also takes what others have put down by then: no thread waits for the lock, so none can
        wait for itself.
        """
        if not self._is_ours:
            return
        self._waiting.append(write(message))
        while self._waiting and self._sending.acquire(blocking=False):
            try:
                while self._waiting:
                    self._pipe.send_bytes(self._waiting.popleft())
            except OSError:
                os._exit(1)  # the parent is gone
            finally:
                self._sending.release()

    def leave_to_parent(self) -> None:
        """In a process that a job forked: with our end open there, our own death would not be noticed."""
        self._is_ours = False
        self._pipe.close()


class _Output(Capture, kw_only=True, eq=False, gc=False):
    """Output of an attempt, sent to the parent, which keeps what is to be kept."""

    wire: Wire
    number: int
    _pending: bytearray = field(default_factory=bytearray)
    _lock: Any = field(default_factory=threading.RLock)
    _writes: int = 0
    _last: float = 0.0

    def write(self, text: str) -> None:
        for start in range(0, len(text), PIECE):
            self.write_bytes(text[start : start + PIECE].encode("utf-8", "backslashreplace"))

    def write_bytes(self, data: bytes | memoryview) -> None:
        with self._lock:
            self._pending += data
            self._writes += 1
            lately = self._writes > SENT_AT_ONCE and time.monotonic() - self._last < SEND_EVERY
            if not lately or len(self._pending) >= PIECE:
                self.flush()

    def flush(self) -> None:
        with self._lock:
            data, self._pending = self._pending, bytearray()
            self._last = time.monotonic()
            for start in range(0, len(data), PIECE):
                self.wire.send(Output(self.number, bytes(data[start : start + PIECE])))


class _Context(JobContext, kw_only=True, eq=False):
    """A job's context whose progress reaches the parent, and which is notified by it that the worker is stopping."""

    _number: int
    _wire: Wire
    _kept_at: KeptAt
    _state: Any = None
    _sent: tuple[float, str] | None = None
    _last: float = 0.0

    @classmethod
    def of(cls, order: Order, wire: Wire, state: Any) -> _Context:
        return cls(
            id=order.id,
            queue=order.queue,
            target=order.function.target,
            attempt=order.attempt,
            history=order.history,
            worker=order.worker,
            name=order.job_name,
            tenant=order.tenant,
            tags=order.tags,
            retries_left=order.retries_left,
            flow=order.flow,
            message_headers=order.message_headers,
            _headers=order.headers,
            deadline_ms=order.deadline_ms,
            deadline_at=order.deadline_at,
            _number=order.number,
            _wire=wire,
            _kept_at=order.kept_at,
            _state=state,
            _token=order.token,
        )

    @property
    def state(self) -> Any:
        return self._state

    def _home(self) -> Home:
        at = self._kept_at
        signer = Signer(Keyring(at.signing_keys), at.place) if at.signing_keys else None
        return Home(_client(at), QueueKeys(at.address, place=at.place, signer=signer), at.most)

    def _must_stop(self) -> bool:
        return self._wire.is_paused(self._number)

    def progress(self, fraction: float, message: str = "") -> None:
        super().progress(fraction, message)
        if time.monotonic() - self._last >= SEND_EVERY:
            self.flush()

    def flush(self) -> None:
        if self._progress is not None and self._progress != self._sent:
            self._sent = self._progress
            self._last = time.monotonic()
            self._wire.send(Progressed(self._number, self._progress[0], _printable(self._progress[1])))


@functools.cache
def _client(at: KeptAt) -> Client:
    """The way to the server, for checkpoints: opened by the first that is read or written, then kept."""
    return Client(
        at.url,
        AppKeys("", "", ""),  # names channels of processes that wait for jobs: none does here
        data_dir=Path(at.data_dir),
        connect_timeout=at.connect_timeout,
        call_timeout=at.call_timeout,
    )


class _Found(NamedTuple):
    func: Callable[..., Any]
    signature: Signature
    retry_on: Errors = ()
    give_up_on: Errors = ()
    soft_timeout: float | None = None
    #: None: no app is known here
    engine: Engine | None = None


@functools.cache
def _find(function: Function) -> _Found:
    home, _, attribute = function.app.partition(":")
    app = getattr(importlib.import_module(home), attribute) if home else None
    tasks = app.tasks if app is not None else {}
    module = importlib.import_module(function.module)
    if function.target in tasks:
        return _of_task(tasks[function.target])
    for value in vars(module).values():
        if isinstance(value, Task) and value.target == function.target:
            return _of_task(value)
    # A plain function, or a task inside a class.
    found: Any = functools.reduce(getattr, function.name.split("."), module)
    if isinstance(found, Task):
        return _of_task(found)
    if app is not None and app.engine.middleware:
        return _of_task(app.engine.function(found, trusted=True))
    signature = (ActionSignature if function.is_action else Signature)(found)
    filled = Dependencies().filled(found, function.target, is_async=inspect.iscoroutinefunction(found))
    return _Found(filled, signature, engine=app.engine if app is not None else None)


def _of_task(task: Task[..., Any]) -> _Found:
    options = task.options
    return _Found(task.attempt, task.signature, options.retry_on, options.give_up_on, options.soft_timeout, task.engine)


def _prepare(function: Function) -> Ready | Failed:
    try:
        with settings.restored_environment():
            _find(function)
    except BaseException as error:  # noqa: BLE001  # SystemExit too: scripts end themselves when imported
        failed = _failed(error)
        where = f"{function.target} cannot be run in a process of its own: {function.module}.{function.name}"
        text = f"{where} was not found by importing it there: {failed.error}: {failed.message}"
        return msgspec.structs.replace(failed, message=text[:MESSAGE_MOST])
    return Ready()


@contextmanager
def surroundings(order: Order, wire: Wire, state: Any) -> Iterator[JobContext]:
    """What an attempt finds around it: its context, its output, its trace. Set in the context of the caller."""
    output, job = _Output(0, wire=wire, number=order.number), _Context.of(order, wire, state)
    capture.current.set(output)
    context.running.set(job)
    traces = telemetry(order.traceparent != "")
    entered = traces.enter_from_afar(order.traceparent) if traces is not None else None
    try:
        yield job
    finally:
        if traces is not None:
            traces.leave(entered)
        output.end()
        output.flush()
        job.flush()


def attempt(order: Order, wire: Wire, state: Any, run: Runs = asyncio.run) -> Answer:
    """Make one attempt in this thread; `run` runs coroutines."""
    found = _find(order.function)
    with surroundings(order, wire, state) as job:
        try:
            args, kwargs = found.signature.decode(order.args, order.kwargs)
            result = call(found.func, args, kwargs, found.soft_timeout, run)
            return _done(order, found, result, carries=job._keeping is not None)
        except BaseException as error:  # noqa: BLE001  # SystemExit and its like are failures of a task
            return _judged(error, found)


async def attempt_on_loop(order: Order, wire: Wire, state: Any) -> Answer:
    """Make one attempt of a coroutine function, beside others."""
    found = _find(order.function)
    with surroundings(order, wire, state) as job:
        try:
            args, kwargs = found.signature.decode(order.args, order.kwargs)
            coroutine = found.func(*args, **kwargs)
            result = await (coroutine if found.soft_timeout is None else limited(coroutine, found.soft_timeout))
            return _done(order, found, result, carries=job._keeping is not None)
        except BaseException as error:  # noqa: BLE001  # as above, and CancelledError when it is stopped
            return _judged(error, found)


def _judged(error: BaseException, found: _Found) -> Answer:
    match error:
        case Retry():
            return Decided("retry", _text(error.reason), error.delay)
        case Snooze():
            return Decided("snooze", _text(error.reason), error.delay)
        case Cancel():
            return Decided("cancel", _text(error.reason))
    if is_interruption(error):
        return Paused(_text(error))
    permanent = isinstance(error, found.give_up_on) or not isinstance(error, found.retry_on or BaseException)
    return _failed(error, permanent=permanent)


def _done(order: Order, found: _Found, result: Any, *, carries: bool) -> Done:
    if order.result_max is None:
        return Done(carries=carries)
    try:
        return Done(found.signature.encode_result(result, limit=order.result_max), carries=carries)
    except (PayloadError, MemoryError) as refused:
        # The work is done; a result that cannot be encoded must not cause a retry.
        return Done(b"", _text(refused) or "there was not enough memory to encode it", carries=carries)


def _failed(error: BaseException, *, permanent: bool = False) -> Failed:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next  # the story begins where the user's code does
    trace = task_frames(trace)
    try:
        lines = "".join(traceback.format_exception(kind, error, trace))
    except BaseException as odd:  # noqa: BLE001  # any `__str__` runs here, and memory may be short
        lines = f"{name}: its traceback could not be written: {type(odd).__name__}\n"
    if len(lines) > TRACEBACK_MOST:
        lines = lines[: TRACEBACK_MOST // 4] + "\n… left out …\n" + lines[-TRACEBACK_MOST * 3 // 4 :]
    return Failed(_printable(name), _text(error), _printable(lines), permanent)


def _text(value: object) -> str:
    try:
        return _printable(str(value)[:MESSAGE_MOST])
    except BaseException as odd:  # noqa: BLE001  # a `__str__` of the user's
        return f"a text that could not be written: {type(odd).__name__}"


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()  # a lone surrogate cannot travel


def _die_with(parent: int) -> None:
    """Ask to be killed when the parent is gone, however it went, also in the middle of a computation."""
    if sys.platform == "linux":
        # The kernel watches the thread that started us; it lives as long as the parent wants us to.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1 = PR_SET_PDEATHSIG
        if os.getppid() != parent:  # it died before the request was in force
            os._exit(1)
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, name="relevo parent watch", daemon=True).start()


def _leave_signals_to_parent() -> None:
    # Handlers that do nothing, and not SIG_IGN: programs that a job starts would inherit that and could not be ended.
    for number in PARENTS_SIGNALS:
        signal.signal(number, lambda *_: None)
    _unblock()  # the parent had blocked them until here
    # A fork has our handlers and would ignore signals, too. They are blocked during it, so that none is lost.
    os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_hear_signals_again)


def _block() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, PARENTS_SIGNALS)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PARENTS_SIGNALS)


def _hear_signals_again() -> None:
    for number in PARENTS_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    _unblock()


def _be_first_to_go() -> None:
    """Out of memory, the kernel shall end this process, which costs one attempt, and not the worker."""
    score = Path("/proc/self/oom_score_adj")
    try:
        score.write_text(str(min(1000, int(score.read_text()) + 200)))
    except (OSError, ValueError):
        pass  # another system, or not ours to say


W = TypeVar("W", bound=Wire)


def begin(kind: type[W]) -> W:
    """Begin as a child of a worker: the pipe to it. Run as `python -c … PIPE_FD PARENT_PID LOG_LEVEL SYS_PATH…`."""
    fd, parent, level = (int(text) for text in sys.argv[1:4])
    del sys.argv[1:]
    os.set_inheritable(fd, False)
    _die_with(parent)
    _leave_signals_to_parent()
    _be_first_to_go()
    pipe = Connection(fd)
    try:
        apart = read_apart(pipe.recv_bytes())
    except (EOFError, OSError):
        os._exit(0)  # the parent is gone
    settings.give_apart(apart.variables)
    capture.Installed.marks = apart.marks_output
    wire = kind(pipe)
    os.register_at_fork(after_in_child=wire.leave_to_parent)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # we are killed, and would never flush
    if sys.stderr is not None:
        faulthandler.enable()  # where it was when it crashed
    logging.getLogger().setLevel(level)
    wire.send(Ready())
    return wire


@functools.cache
def _route_output() -> None:
    capture.Installed(forward=True).__enter__()


def prepare(function: Function) -> Ready | Failed:
    """Import a function."""
    answer = _prepare(function)
    if isinstance(answer, Ready):
        # Only now: with our handler in place, a `logging.basicConfig` of the user's module would do nothing.
        _route_output()
    return answer


def lifespan_of(function: Function) -> Lifespan | None:
    """The lifespan of the app of a function that was imported; None: there is none."""
    engine = _find(function).engine
    lifespan = None if engine is None else engine.part(Lifespan)
    return lifespan if lifespan is not None and lifespan.is_declared else None


def not_entered(function: Function, error: BaseException) -> Failed:
    """The answer where the lifespan failed."""
    failed = _failed(error)
    text = f"{function.target} cannot be run in a process of its own: {failed.message}"
    return msgspec.structs.replace(failed, message=text[:MESSAGE_MOST])


def leave() -> NoReturn:
    """End the process, after the lifespan was left."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(0)


def _prepare_here(function: Function, loop: OwnLoop) -> Ready | Failed:
    answer = prepare(function)
    if isinstance(answer, Ready) and (lifespan := lifespan_of(function)) is not None:
        try:
            loop.enter(lifespan)
        except BaseException as error:  # noqa: BLE001  # of the user's code
            return not_entered(function, error)
        return Ready(has_lifespan=True)
    return answer


def main() -> None:
    """Serve the parent until it is gone."""
    wire, loop = begin(Wire), OwnLoop()
    while True:
        try:
            message = wire.receive()
        except (EOFError, OSError):
            os._exit(0)
        match message:
            case Function():
                wire.send(_prepare_here(message, loop))
            case Order():
                state, run = loop.lifespan.state, loop.run
                wire.send(contextvars.copy_context().run(attempt, message, wire, state, run))
            case Leave():
                loop.leave()
                leave()
