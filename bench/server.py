"""The server of a run: one of its own, without persistence, on the first core; and what it tells of itself."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

from bench.processes import Process, ProductFailed, cores
from bench.resp import Connection
from relevo.store.embedded.program import Engine, engine_of, find_binary

#: Long commands that are noted.
MOST_SLOW = 100_000


class Counters(NamedTuple):
    """The server's counters at a moment, or what was added between two."""

    calls: dict[str, int]
    reads: int
    bytes_in: int
    bytes_out: int
    cpu: float
    at: float

    def since(self, before: Counters) -> Counters:
        """What was added. INFO and PING are ours and do not count."""
        calls = {name: n - before.calls.get(name, 0) for name, n in self.calls.items() if name not in ("info", "ping")}
        return Counters(
            {name: n for name, n in sorted(calls.items(), key=lambda item: -item[1]) if n > 0},
            self.reads - before.reads,
            self.bytes_in - before.bytes_in,
            self.bytes_out - before.bytes_out,
            self.cpu - before.cpu,
            self.at - before.at,
        )


class Server:
    """A server that lives as long as the `with`."""

    def __init__(self, binary: str | None = None) -> None:
        self.binary = binary or shutil.which("redis-server") or find_binary()
        self.engine: Engine = engine_of(self.binary)
        self.port = 0

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="relevo-bench-server-")
        self.port = _free_port()
        options = {
            "--port": str(self.port),
            "--bind": "127.0.0.1",
            "--save": "",
            "--appendonly": "no",
            "--dir": self._folder.name,
            "--maxclients": "4000",
        }
        command = [self.binary, *(word for option in options.items() for word in option)]
        self._log = Path(self._folder.name, "log").open("wb")
        self._process = Process(command, log=self._log, on=cores()[0])
        try:
            self.ask = self._connected()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()
        self._log.close()
        self._folder.cleanup()

    @property
    def url(self) -> str:
        """Its address."""
        return f"redis://127.0.0.1:{self.port}/0"

    def _connected(self) -> Connection:
        until = time.monotonic() + 10
        while True:
            try:
                found = Connection(self.port)
                found("PING")
                return found
            except OSError:
                if not self._process.is_running or time.monotonic() > until:
                    told = Path(self._folder.name, "log").read_text(errors="replace")[-500:]
                    raise ProductFailed(f"{self.binary} did not start: {told}") from None
                time.sleep(0.02)

    @contextmanager
    def on_any_core(self) -> Iterator[None]:
        """Leave the placing of the server to the system inside `with`."""
        os.sched_setaffinity(self._process.pid, os.sched_getaffinity(0))
        try:
            yield
        finally:
            os.sched_setaffinity(self._process.pid, cores()[0])

    def flush(self) -> None:
        """Empty it: it is ours alone."""
        self.ask("FLUSHALL")

    def memory(self) -> int:
        """Bytes in use, without the buffers of connections: those grow and shrink with what went over them lately."""
        found = self.ask.info("memory")
        return int(found["used_memory"]) - int(found.get("mem_clients_normal", 0))

    def watch_slow(self) -> None:
        """From now on, note commands that take long."""
        self.ask("CONFIG", "SET", "slowlog-log-slower-than", 200)  # microseconds
        self.ask("CONFIG", "SET", "slowlog-max-len", MOST_SLOW)  # else the longest is forgotten for later ones
        self.ask("SLOWLOG", "RESET")

    def slowest_ms(self) -> float:
        """How long the longest took since then; 0 where all were short."""
        return max(self.slow_ms(), default=0.0)

    def slow_ms(self) -> list[float]:
        """How long those took since then, the longest first, and from now on note anew; those below 0.2 ms are none."""
        found = sorted((entry[2] / 1e3 for entry in self.ask("SLOWLOG", "GET", MOST_SLOW)), reverse=True)
        self.ask("SLOWLOG", "RESET")
        return found

    def counters(self) -> Counters:
        """The counters now."""
        stats, cpu = self.ask.info("stats"), self.ask.info("cpu")
        calls = {
            name.removeprefix("cmdstat_"): int(line.partition("calls=")[2].partition(",")[0])
            for name, line in self.ask.info("commandstats").items()
        }
        return Counters(
            calls,
            int(stats.get("total_reads_processed", 0)),
            int(stats["total_net_input_bytes"]),
            int(stats["total_net_output_bytes"]),
            float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"]),
            time.monotonic(),
        )


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
