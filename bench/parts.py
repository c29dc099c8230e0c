"""A server and a worker of its own for each run, and what the server says of itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from relevo.store.embedded_engine import find_binary


class Server:
    """A real server without persistence on loopback, as the peers are measured."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._client = redis.Redis.from_url(url, socket_timeout=30, protocol=2)

    def info(self) -> dict[str, Any]:
        """INFO, all of it."""
        found: dict[str, Any] = self._client.info("all")
        return found

    def commands(self) -> int:
        """Commands carried out so far, also those that scripts issue; without our own INFO."""
        stats: dict[str, Any] = self._client.info("commandstats")
        return sum(entry["calls"] for name, entry in stats.items() if name not in ("cmdstat_info", "cmdstat_ping"))

    def cpu(self) -> float:
        """Seconds of processor time used so far."""
        info = self._client.info("cpu")
        return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])

    def memory(self) -> int:
        """Bytes in use."""
        return int(self._client.info("memory")["used_memory"])

    def flush(self) -> None:
        """Empty it: it is ours alone."""
        self._client.flushall()


@contextmanager
def server(binary: str | None = None) -> Iterator[Server]:
    """A fresh server."""
    with tempfile.TemporaryDirectory(prefix="relevo-bench-") as folder:
        path = Path(folder) / "bench.sock"
        options = ["--port", "0", "--unixsocket", str(path), "--save", "", "--appendonly", "no", "--dir", folder]
        process = subprocess.Popen([binary or find_binary(), *options], stdout=subprocess.DEVNULL)
        try:
            found = Server(f"unix://{path}")
            deadline = time.monotonic() + 10
            while True:
                try:
                    found.info()
                    break
                except redis.RedisError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.01)
            yield found
        finally:
            process.terminate()
            process.wait(10)


class WorkerProcess:
    """One worker process and the processor time it used."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def cpu(self) -> float:
        """Seconds of processor time of the process that runs jobs (not of its supervisor)."""
        total = 0.0
        for pid in [self.process.pid, *_children(self.process.pid)]:
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            except (OSError, IndexError):
                continue
        return total


def _children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


@contextmanager
def worker(*options: str) -> Iterator[WorkerProcess]:
    """A worker as users start it."""
    command = [sys.executable, "-m", "relevo.cli.main", "worker", "bench.jobs:app", "--log-level", "WARNING", *options]
    process = subprocess.Popen(command)
    try:
        yield WorkerProcess(process)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
