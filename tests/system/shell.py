"""The command `relevo`: called in this process where its output and exit code matter, else started as a process."""

from __future__ import annotations

import asyncio
import importlib
import io
import json
import logging
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self, TextIO
from unittest import mock

from relevo.cli.main import main
from tests.eventually import PATIENCE, eventually

_SOURCE = Path(__file__).parents[2] / "src"
#: Commands that start, lead or are processes.
_PROCESSES = ("worker", "demo")
#: A machine that stands still for ten seconds makes no command fail; a test of a server that is down sets less.
PATIENT_ENV = {"RELEVO_CALL_TIMEOUT": "30s", "RELEVO_CONNECT_TIMEOUT": "30s"}


class Output(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be JSON and nothing else."""
        return json.loads(self.out)


def command(*arguments: str) -> list[str]:
    """The command line."""
    return [sys.executable, "-m", "relevo.cli.main", *arguments]


def environment(url: str | None, **variables: str) -> dict[str, str]:
    """This process' variables without those of relevo, and with what is given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RELEVO_", "REDIS_"))}
    given = {"RELEVO_URL": url} if url else {}
    return {**kept, "PYTHONPATH": str(_SOURCE), "RELEVO_ENV": "test", **given, **variables}


def relevo(*arguments: str, url: str | None = None, cwd: Path | None = None, **variables: str) -> Output:
    """Run the command to its end, with pipes instead of a terminal, in this process if it is not about processes."""
    if arguments[:1] and arguments[0] in _PROCESSES and "--help" not in arguments:
        return relevo_process(*arguments, url=url, cwd=cwd, **variables)
    env = environment(url, **{**PATIENT_ENV, **variables})
    encoding = env.get("PYTHONIOENCODING", "utf-8")
    with open(os.devnull, encoding="utf-8") as stdin:
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2))
        code = _in_a_thread_beside_a_loop(arguments, Streams(stdin, out, err), env, cwd)
        out.flush()
        err.flush()
    return Output(code, *(stream.buffer.getvalue().decode(encoding) for stream in (out, err)))


def relevo_process(*arguments: str, url: str | None = None, cwd: Path | None = None, **variables: str) -> Output:
    """Run the command to its end as a process of its own, with pipes instead of a terminal."""
    env, nothing = environment(url, **{**PATIENT_ENV, **variables}), subprocess.DEVNULL
    done = subprocess.run(
        command(*arguments), env=env, cwd=cwd, capture_output=True, encoding="utf-8", timeout=PATIENCE, stdin=nothing
    )
    return Output(done.returncode, done.stdout, done.stderr)


def on_terminal(*arguments: str, url: str, columns: int = 80, typed: str = "", **variables: str) -> Output:
    """Run the command to its end in this process, on a terminal; what it wrote there, with colours, is `out`."""
    ours, theirs = pty.openpty()
    if typed:
        os.write(ours, typed.encode())
    env = _of_terminal(url, columns, variables)
    written: list[bytes] = []
    reading = threading.Thread(target=lambda: written.extend(_chunks(ours)))
    reading.start()
    with (
        open(theirs, "rb", buffering=0),  # closes it
        open(theirs, encoding="utf-8", closefd=False) as stdin,
        open(theirs, "w", encoding="utf-8", closefd=False) as stdout,
        open(theirs, "w", encoding="utf-8", closefd=False) as stderr,
    ):
        code = _in_a_thread_beside_a_loop(arguments, Streams(stdin, stdout, stderr), env, None)
    reading.join()
    os.close(ours)
    return Output(code, b"".join(written).decode(), "")


def _of_terminal(url: str, columns: int, variables: dict[str, str]) -> dict[str, str]:
    given = {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "40", **PATIENT_ENV, **variables}
    env = environment(url, **given)
    if "NO_COLOR" not in variables:
        env.pop("NO_COLOR", None)
    return env


def _chunks(descriptor: int) -> Iterator[bytes]:
    try:
        while chunk := os.read(descriptor, 65536):
            yield chunk
    except OSError:  # how Linux says that the other side was closed
        pass


def plain(text: str) -> list[str]:
    """The lines of a terminal, without colours and other escape sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "").splitlines()


class Terminal:
    """A command as a process on a terminal, for as long as the block lasts."""

    def __init__(self, *arguments: str, url: str, columns: int = 80, **variables: str) -> None:
        self._ours, theirs = pty.openpty()
        env = _of_terminal(url, columns, variables)
        self.process = subprocess.Popen(command(*arguments), env=env, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        self.seen = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def shows(self, text: str, times: int = 1) -> None:
        """Wait until it has written this, so many times."""
        eventually(lambda: self._saw(text, times), what=f"{text!r} on the terminal")

    def _saw(self, text: str, times: int) -> bool:
        if self.seen.count(text) < times:
            try:
                self.seen += os.read(self._ours, 65536).decode(errors="replace")
            except OSError:  # how Linux says that the other side was closed
                assert self.seen.count(text) >= times, f"it ended without {text!r}: {self.seen}"
        return self.seen.count(text) >= times

    def press(self, keys: bytes) -> None:
        """Type."""
        os.write(self._ours, keys)

    def ends(self, how: signal.Signals | None = None) -> int:
        """Send a signal, if one is given, and read on until it ends: its exit code."""
        if how is not None:
            self.process.send_signal(how)
        self.seen += b"".join(_chunks(self._ours)).decode(errors="replace")
        return self.process.wait(PATIENCE)

    @property
    def lines(self) -> list[str]:
        """All that was read of it, without colours."""
        return plain(self.seen)


class Streams(NamedTuple):
    """What a command reads and writes."""

    stdin: TextIO
    stdout: TextIO
    stderr: TextIO


def _in_a_thread_beside_a_loop(
    arguments: tuple[str, ...], streams: Streams, env: dict[str, str], cwd: Path | None
) -> int:
    """A command may run a loop of its own, which cannot be done in a thread that has one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _call(arguments, streams, env, cwd)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_call, arguments, streams, env, cwd).result()


def _call(arguments: tuple[str, ...], streams: Streams, env: dict[str, str], cwd: Path | None) -> int:
    """`main`, in a process that is as it was afterwards. What Python does at its end is done here."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.multiple(sys, **streams._asdict()))
        for one in (_variables(env), importing_from(cwd), _signals(), _logs(streams.stderr)):
            stack.enter_context(one)
        try:
            return int(main(arguments))
        except SystemExit as end:
            assert isinstance(end.code, int)
            return end.code
        except Exception:
            traceback.print_exc()
            return 1


@contextmanager
def _variables(env: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    _set(env)
    try:
        yield
    finally:
        _set(before)


def _set(env: dict[str, str]) -> None:
    for name in os.environ.keys() - env.keys():
        del os.environ[name]
    for name, value in env.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


@contextmanager
def importing_from(cwd: Path | None) -> Iterator[None]:
    """Modules that are imported from it are forgotten afterwards: another test has others of the same name."""
    if cwd is None:
        yield
        return
    before, path, modules, writes = Path.cwd(), [*sys.path], {*sys.modules}, sys.dont_write_bytecode
    os.chdir(cwd)
    sys.path.insert(0, str(cwd))
    sys.dont_write_bytecode = True  # a file that is changed within a second would be taken for the old one
    importlib.invalidate_caches()
    try:
        yield
    finally:
        os.chdir(before)
        sys.path[:] = path
        sys.dont_write_bytecode = writes
        for name in sys.modules.keys() - modules:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).is_relative_to(cwd):
                del sys.modules[name]


@contextmanager
def _signals() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@contextmanager
def _logs(stderr: TextIO) -> Iterator[None]:
    """Warnings of the command go to its standard error, those of other threads do not."""
    thread, root = threading.get_ident(), logging.getLogger()
    handlers, level, handler = [*root.handlers], root.level, logging.StreamHandler(stderr)
    handler.setLevel(logging.WARNING)
    handler.addFilter(lambda record: record.thread == thread)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
