"""A task queue in a database beside relevo.compat: python -m bench.ifdb

Both have one worker that runs one task at a time. The database queue is what IFDB's specification says, without Django:
a row per task, the next one by priority and time, two commits per task, and a signal that wakes the worker. It has the
database to itself; relevo has an embedded server on the same disk.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

KINDS = ("database", "relevo")
Enqueue = Callable[[int], Any]
_TABLE = """CREATE TABLE IF NOT EXISTS task (id INTEGER PRIMARY KEY, name TEXT, command TEXT, priority INTEGER,
enqueued REAL, scheduled REAL, started REAL, finished REAL, pending INTEGER, success INTEGER, log TEXT)"""
_NEXT = """SELECT id, command FROM task WHERE pending AND (scheduled IS NULL OR scheduled <= ?)
ORDER BY priority, enqueued LIMIT 1"""


def note(n: int) -> None:
    """The task: says when it began."""
    with open(os.environ["BENCH_NOTES"], "a") as notes:
        print(n, time.monotonic(), file=notes)


# the two queues
def opened() -> sqlite3.Connection:
    """The database, as safe as SQLite is by default."""
    database = sqlite3.connect(os.environ["BENCH_DATABASE"], timeout=60, isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute(_TABLE)
    database.execute("CREATE INDEX IF NOT EXISTS next ON task (pending, priority, enqueued)")
    return database


def into_database(worker: int) -> Enqueue:
    """Enqueue as the original does: a row, and a signal."""
    database = opened()

    def enqueue(n: int) -> None:
        command = json.dumps({"module": "bench.ifdb", "function": "note", "argv": [n], "kwarg": {}})
        row = (f"note({n})", command, 100, time.time())
        database.execute("INSERT INTO task (name, command, priority, enqueued, pending) VALUES (?, ?, ?, ?, 1)", row)
        os.kill(worker, signal.SIGUSR1)

    return enqueue


def work_on_database() -> None:
    """The worker of the original."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    database = opened()
    while True:
        row = database.execute(_NEXT, (time.time(),)).fetchone()
        if row is None:
            signal.sigtimedwait([signal.SIGUSR1], 1.0)
            continue
        database.execute("UPDATE task SET started = ? WHERE id = ?", (time.time(), row[0]))
        note(*json.loads(row[1])["argv"])
        ended = (time.time(), row[0])
        database.execute("UPDATE task SET finished = ?, pending = 0, success = 1, log = '' WHERE id = ?", ended)


def into_relevo(worker: int) -> Enqueue:
    """Enqueue by relevo.compat."""
    from bench import ifdb
    from relevo.compat import Enqueue, configure

    configure(allow=["bench.ifdb"])
    return lambda n: Enqueue(ifdb.note, n, name=f"note({n})")


def work_on_relevo() -> None:
    """The worker of relevo.compat."""
    from relevo.compat import Worker, configure

    configure(allow=["bench.ifdb"])
    Worker()


ENQUEUES = {"database": into_database, "relevo": into_relevo}
WORKERS = {"database": work_on_database, "relevo": work_on_relevo}


# measuring
def measured(kind: str, tasks: int, single: int) -> dict[str, str]:
    """The figures of one queue."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ |= {"BENCH_NOTES": f"{folder}/notes", "BENCH_DATABASE": f"{folder}/tasks.sqlite3"}
        with server(kind) as its, worker(kind) as pid:
            enqueue = ENQUEUES[kind](pid)
            time.sleep(3)  # it has started, and waits for the signal
            enqueue(-1)
            until(1)
            idle_cpu, began = cpu_of(pid, its), time.monotonic()
            time.sleep(5)
            idle = (cpu_of(pid, its) - idle_cpu) / (time.monotonic() - began)
            waits = [wait_for(enqueue, n + 2) for n in range(single)]
            began, cpu = time.monotonic(), cpu_of(pid, its)
            for n in range(tasks):
                enqueue(n)
            enqueued = time.monotonic() - began
            last = until(1 + single + tasks)
            return {
                "an idle worker begins after (median)": f"{statistics.median(waits) * 1000:.1f} ms",
                "tasks enqueued, one by one": f"{tasks / enqueued:,.0f}/s",
                "tasks run": f"{tasks / (last - began):,.0f}/s",
                "CPU of worker and server per task": f"{(cpu_of(pid, its) - cpu) / tasks * 1000:.2f} ms",
                "CPU of both while idle": f"{idle * 100:.1f} %",
                "memory of the worker": f"{memory_of(pid):.0f} MiB",
                "memory of the server": f"{memory_of(its):.0f} MiB" if its else "none",
            }


def wait_for(enqueue: Enqueue, count: int) -> float:
    """Seconds until an idle worker begins a task, the one of that number."""
    time.sleep(0.05)
    began = time.monotonic()
    enqueue(count)
    return until(count) - began


def until(count: int) -> float:
    """Wait for so many tasks: when the last of them began."""
    notes, deadline = Path(os.environ["BENCH_NOTES"]), time.monotonic() + 600
    while time.monotonic() < deadline:
        lines = notes.read_text().splitlines() if notes.exists() else []
        if len(lines) >= count:
            return float(lines[-1].split()[1])
        time.sleep(0.005 if count < 1000 else 0.2)
    raise TimeoutError(f"{count} tasks did not run within 600 s")


@contextmanager
def server(kind: str) -> Iterator[int]:
    """The process of relevo's server; 0: the database has none."""
    if kind == "database":
        yield 0
        return
    from redis import Redis

    from relevo.testing import server as embedded

    with embedded() as url:
        os.environ["RELEVO_URL"] = url
        with Redis.from_url(url) as client:
            info: Any = client.info("server")
        yield int(info["process_id"])


@contextmanager
def worker(kind: str) -> Iterator[int]:
    """A worker process."""
    process = subprocess.Popen([sys.executable, "-m", "bench.ifdb", "--work", kind], stderr=subprocess.DEVNULL)
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait(60)


def cpu_of(*pids: int) -> float:
    """Seconds of CPU that these processes have used."""
    total = 0
    for pid in filter(None, pids):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def memory_of(pid: int) -> float:
    """MiB in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    """Measure both."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tasks", type=int, default=5000, help="tasks enqueued at once (default: 5000)")
    options.add_argument("--single", type=int, default=100, help="tasks for an idle worker (default: 100)")
    options.add_argument("--work", choices=KINDS, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.work:
        WORKERS[given.work]()
        return
    rows = {kind: measured(kind, given.tasks, given.single) for kind in KINDS}
    print(f"{'':<40}" + "".join(f"{kind:>12}" for kind in KINDS))
    for what in rows["relevo"]:
        print(f"{what:<40}" + "".join(f"{rows[kind][what]:>12}" for kind in KINDS))


if __name__ == "__main__":
    main()
