"""A child process and the pipe to it, as its parent sees them."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing import Pipe

import msgspec

from relevo.settings import secret_variables
from relevo.worker.capture import Installed
from relevo.worker.executors.process_messages import (
    Apart,
    FromChild,
    Function,
    Leave,
    Order,
    Pause,
    ToChild,
    read_answer,
    write,
)

# A program of its own and not `multiprocessing`, which would run the user's main script again in every child.
_PROGRAM = "import sys; sys.path[:] = sys.argv[4:]; from relevo.worker.executors.{} import main; main()"


#: Seconds for a child to leave the app's lifespan.
LEAVE_PATIENCE = 4.0


class Gone(Exception):
    """The child has died, or speaks no longer."""


class Late(Exception):
    """The child did not answer in time."""


class Child:
    """A child process and the pipe to it. Used by one thread; only `kill` and `pause` are for others."""

    def __init__(self, module: str = "process_child") -> None:
        self.knows: set[Function] = set()
        self.is_ready = False
        self.was_killed = False
        #: it has entered the app's lifespan
        self.has_lifespan = False
        self._orders = 0
        self._sending = threading.Lock()
        #: the number of the order it has; 0: none yet
        self._ordered = 0
        self._pipe, theirs = Pipe()
        fd = theirs.fileno()
        arguments = [str(fd), str(os.getpid()), str(logging.getLogger().level), *filter(_is_text, sys.path)]
        # What a job starts, and what prints an environment into a report, shall find no password of ours there.
        secrets = secret_variables(os.environ)
        flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        try:
            # In a session of its own: Ctrl-C does not reach it, and what its job has started can be killed with it.
            self._process = subprocess.Popen(  # noqa: S603
                [sys.executable, *flags, "-c", _PROGRAM.format(module), *arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=(fd,),
                start_new_session=True,
                env={name: value for name, value in os.environ.items() if name not in secrets},
            )
            with suppress(OSError):  # it has died, which `receive` will say
                self._pipe.send_bytes(write(Apart(_of_use(secrets), Installed.is_marked())))
        except BaseException:
            self._pipe.close()
            raise
        finally:
            theirs.close()

    @property
    def has_died(self) -> bool:
        """Whether it ended while it had nothing to do."""
        return self._process.poll() is not None

    def next_number(self) -> int:
        """A number for an order, by which late messages of an earlier one are known."""
        self._orders += 1
        return self._orders

    def send(self, message: ToChild) -> None:
        """Tell it what to do."""
        try:
            self._pipe.send_bytes(write(message))
        except OSError as error:
            raise Gone from error

    def order(self, message: Order) -> None:
        """Have it make an attempt."""
        with self._sending:
            self.send(message)
            self._ordered = message.number

    def pause(self) -> None:
        """Let its attempt end where its checkpoints are; one that has none goes on. Also for other threads."""
        with self._sending:
            if self._ordered:
                try:
                    self._pipe.send_bytes(write(Pause(self._ordered)))
                except OSError:
                    pass  # the thread that receives from it will notice

    def receive(self, patience: float | None = None) -> FromChild:
        """What it says next."""
        try:
            if patience is not None and not self._pipe.poll(patience):
                raise Late
            return read_answer(self._pipe.recv_bytes())
        except (EOFError, OSError, msgspec.DecodeError) as error:
            raise Gone from error

    def dismiss(self) -> None:
        """Let it leave the app's lifespan and end, if it does so soon. Only while it has nothing to do."""
        if not self.has_lifespan or self.was_killed:
            return
        with suppress(OSError, subprocess.TimeoutExpired):
            self._pipe.send_bytes(write(Leave()))
            self._process.wait(LEAVE_PATIENCE)

    def kill(self) -> None:
        """Kill it and what it has started, at once."""
        self.was_killed = True
        self._kill()

    def bury(self) -> str:
        """See that it is gone, and say how it ended."""
        self._pipe.close()
        self._kill()  # what it has started; and itself, should it have closed the pipe and live on
        code = self._process.wait()
        if self.was_killed:
            return "was killed by the worker"
        if code >= 0:
            return f"ended with exit code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:  # a real-time signal
            name = "without a name"
        hint = "; was memory short?" if -code == signal.SIGKILL else ""
        return f"was killed by signal {-code} ({name}){hint}"

    def _kill(self) -> None:
        if self._process.returncode is not None:
            return  # reaped: its number may belong to another process by now
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # all of them are gone; some systems say so in the second way


def _of_use(secrets: dict[str, str]) -> dict[str, str]:
    """Those that jobs need, to enqueue others: no job serves the HTTP API."""
    return {name: value for name, value in secrets.items() if name != "RELEVO_WEB_TOKENS"}


def _is_text(entry: object) -> bool:
    return isinstance(entry, str)
