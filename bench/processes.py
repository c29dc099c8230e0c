"""Processes of a product: started on their cores, watched, and ended with everything they started."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

_TICK = os.sysconf("SC_CLK_TCK")


class ProductFailed(RuntimeError):
    """A product could not do what was asked of it."""


def cores() -> tuple[set[int], set[int]]:
    """Where the server runs, and where everybody else does: the first core is the server's.

    `BENCH_PIN=0` leaves the placing to the system, as does a machine with one core.
    """
    found = sorted(os.sched_getaffinity(0))
    if os.environ.get("BENCH_PIN", "1") == "0" or len(found) < 2:
        return set(found), set(found)
    return {found[0]}, set(found[1:])


class Process:
    """A process with a session of its own, to which all its children belong."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: IO[bytes],
        on: set[int],
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        talks: bool = False,
    ) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
            stdout=subprocess.PIPE if talks else log,
            stderr=log,
            env=env,
            cwd=cwd,
            start_new_session=True,  # Ctrl-C is for the harness, which then ends what it started
        )
        self._name = " ".join(command)[:200]
        self.pid = self._process.pid
        os.sched_setaffinity(self.pid, on)

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def cpu(self) -> float:
        """Seconds of processor time of all its living processes."""
        total = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            if int(fields[3]) == self.pid:
                total += int(fields[11]) + int(fields[12])
        return total / _TICK

    def finish(self, *, within: float) -> str:
        """Close its standard input and wait for its end; what it printed."""
        try:
            out, _ = self._process.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            raise ProductFailed(f"{self._name} has not finished within {within:.0f} s") from None
        if self._process.returncode != 0:
            raise ProductFailed(f"{self._name} ended with {self._process.returncode}; see its log")
        return (out or b"").decode()

    def stop(self, grace: float = 3.0) -> None:
        """End it: in good order within `grace` seconds, and then in any case. With a grace of 0, at once."""
        if grace and self.is_running:
            self._signal(signal.SIGTERM)
            try:
                self._process.wait(grace)
            except subprocess.TimeoutExpired:
                pass
        self._signal(signal.SIGKILL)  # also what outlived its parent
        self._process.wait()

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            pass


class DriverProcess(Process):
    """The driver of a product, and how it is asked."""

    def __init__(self, python: str, adapter: str, *, log: IO[bytes], env: Mapping[str, str], cwd: Path) -> None:
        command = [python, "-m", "bench.driver", adapter]
        super().__init__(command, log=log, on=cores()[1], env=env, cwd=cwd, talks=True)

    def __call__(self, op: str, *, within: float = 120.0, **arguments: Any) -> dict[str, Any]:
        """Carry out an operation of `bench.driver`."""
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None
        assert answers is not None
        try:
            requests.write(json.dumps({"op": op, **arguments}).encode() + b"\n")
            requests.flush()
        except BrokenPipeError:
            raise ProductFailed(f"{op}: the driver has ended; see its log") from None
        if not select.select([answers], [], [], within)[0]:
            raise ProductFailed(f"{op}: no answer within {within:.0f} s")
        line = answers.readline()
        if not line:
            raise ProductFailed(f"{op}: the driver ended; see its log")
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise ProductFailed(f"{op}: {found['error']}")
        return found

    def stop(self, grace: float = 1.0) -> None:
        """Let it close its connections, then end it."""
        if self._process.stdin is not None:
            try:
                self._process.stdin.close()
                self._process.wait(grace)
            except (OSError, subprocess.TimeoutExpired):
                pass
        super().stop(0)
        if self._process.stdout is not None:
            self._process.stdout.close()


def run_to_end(command: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: IO[bytes], within: float) -> str:
    """Run a short program beside the products; what it printed."""
    process = Process(command, log=log, on=cores()[1], env=env, cwd=cwd, talks=True)
    try:
        return process.finish(within=within)
    finally:
        process.stop(0)


def end_leftovers() -> None:
    """End children that nobody ended, such as one that was started in the moment of a Ctrl-C."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getpid():
                child = int(stat.parent.name)
                os.killpg(child, signal.SIGKILL) if int(fields[3]) == child else os.kill(child, signal.SIGKILL)
        except OSError:
            continue


def refuse_other_systems() -> None:
    """Cores and processor time are read in the way of Linux."""
    if not sys.platform.startswith("linux"):
        raise SystemExit(f"python -m bench runs on Linux only, found {sys.platform}")
