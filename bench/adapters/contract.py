"""What a product must offer to be measured.

The job is `noop(i: int, s: str)`: it calls `bench.probe.hit(i)` and returns `i`. An adapter is imported by the driver
and by the product's worker, in the product's interpreter, so it may import the standard library, the product, and
`probe` and `resp` of this package. Whether results are kept is said by the environment, to driver and worker alike.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from bench.resp import Connection, ReplyError

#: What every job carries beside its number.
TEXT = "hello-world"

URL = os.environ.get("BENCH_URL", "redis://127.0.0.1:6379/0")
PORT = int(URL.rpartition(":")[2].partition("/")[0])
KEEPS_RESULTS = os.environ.get("BENCH_RESULTS") == "1"
#: Some products run delayed jobs only beside an extra process of their own.
NEEDS_DELAYED = os.environ.get("BENCH_DELAYED") == "1"
#: Jobs at once in one async worker.
CONCURRENCY = int(os.environ.get("BENCH_CONCURRENCY", "100"))


def program(name: str) -> str:
    """A command of the running interpreter's environment."""
    return str(Path(sys.executable).parent / name)


class Adapter:
    """One product. Where `is_async`, the methods of the client are coroutines."""

    #: The distribution whose version is told.
    distribution = ""
    is_async = True
    #: Jobs per call of the product's bulk enqueue; 0 where it has none.
    bulk = 0
    #: The same for jobs with a time.
    bulk_at = 0
    #: How many enqueue at once when only the filling of a queue is wanted and there is no bulk call.
    fill_lanes = 50
    #: How client and worker are set, in words.
    settings = ""
    #: What becomes of a job whose worker dies, in words.
    reliability = ""
    #: Whether a dead worker's job runs again by itself.
    recovers = False
    #: Whether a finished job leaves nothing that grows.
    cleans_up = True
    has_delayed = True
    #: Commands whose replies add up to the jobs that are not acknowledged yet.
    inflight: tuple[tuple[str, ...], ...] = ()

    def open(self) -> Any:
        """Connect."""

    def close(self) -> Any:
        """Disconnect."""

    def enqueue(self, i: int, s: str) -> Any:
        """Enqueue one job."""
        raise NotImplementedError

    def enqueue_bulk(self, jobs: list[tuple[int, str]]) -> Any:
        """Enqueue at most `bulk` jobs in one call."""
        raise NotImplementedError

    def enqueue_at(self, i: int, s: str, when: float) -> Any:
        """Enqueue one job that is due at the Unix time `when`."""
        raise NotImplementedError

    def enqueue_at_bulk(self, jobs: list[tuple[int, str]], when: float) -> Any:
        """Enqueue at most `bulk_at` jobs that are due at `when`."""
        raise NotImplementedError

    def call(self, i: int, s: str) -> Any:
        """Enqueue one job, wait for its result, and give it."""
        raise NotImplementedError

    def unfinished(self) -> Any:
        """How many jobs are not acknowledged; asked when all have started."""
        if not self.inflight:
            return 0
        server = Connection(PORT)
        try:
            return sum(_number(server, command) for command in self.inflight)
        finally:
            server.close()

    def worker(self) -> list[str]:
        """The command line of one worker process."""
        return [sys.executable, "-m", type(self).__module__]


def _number(server: Connection, command: tuple[str, ...]) -> int:
    try:
        reply = server(*command)
    except ReplyError:
        return 0  # such as a consumer group that does not exist yet
    if isinstance(reply, list):
        reply = reply[0] if reply else 0
    return int(reply or 0)
