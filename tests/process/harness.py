"""A place for one test: an app of its own, worker processes to harm, and the file of effects that tells the truth.

with Site(server, tmp_path, lease="1.5s") as site:
    worker = site.start()
    site.enqueue("nap", 1, 0.5)
    worker.kill()
    site.start()
    site.check(duplicates=1)
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from uuid import uuid4

import msgspec

from relevo import Job, State
from relevo.errors import StoreError
from relevo.store.plan import Call
from relevo.worker.child import Order
from tests.eventually import eventually
from tests.leaks import leaks
from tests.process import jobs
from tests.servers import Server

TARGET = "tests.process.jobs:app"
#: Seconds for a Python process to start and to ask for jobs, on a machine that is busy with other tests.
START = 20.0
_COMMAND = "import sys; from relevo.cli.main import main; sys.exit(main())"
#: Shifts the clock of a process: Python imports a module of this name before anything else.
_WRONG_CLOCK = """\
import os, time
_shift, _time, _time_ns = float(os.environ["RELEVO_TEST_CLOCK"]), time.time, time.time_ns
time.time = lambda: _time() + _shift
time.time_ns = lambda: _time_ns() + int(_shift * 1e9)
"""


class Effect(NamedTuple):
    """A line of the file: when (monotonic, the same for all processes), by whom, what, of which job."""

    when: float
    pid: int
    what: str
    n: int


class WorkerProcess:
    """A worker as the operating system sees it."""

    def __init__(self, command: list[str], *, env: dict[str, str], log: Path, dies: bool) -> None:
        self._log = log
        #: whether somebody ended it, or meant to: one that ends by itself is a failure
        self.was_ended = dies
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                cwd=log.parent,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def ids(self) -> list[str]:
        """Ids of the workers that began in this process or under it."""
        return re.findall(r"worker (\w+): app ", self.log)

    def lines(self, *levels: str) -> list[str]:
        """What it logged at these levels."""
        return [line for line in self.log.splitlines() if any(f" {level} " in line for level in levels)]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """kill -9, of this process alone."""
        self.was_ended = True
        self.process.kill()
        self.process.wait()

    def stop(self, *, timeout: float = 15.0) -> int:
        """SIGTERM, and the exit code."""
        self.was_ended = True
        self.process.terminate()
        return self.process.wait(timeout)

    def cpu_seconds(self) -> float:
        """Time on a core so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        """No process of it stays behind the test."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


class Site:
    """One test's app on a server, the processes it starts, and the checker of what became of its jobs."""

    def __init__(self, server: Server, directory: Path, **settings: str) -> None:
        self.server = server
        self._directory = directory
        self._settings = settings
        self._effects = directory / f"effects-{uuid4().hex[:8]}"
        self.name = f"p{uuid4().hex[:12]}"
        self.app = jobs.build(self.name, url=server.url, env="test", **settings)
        self.queue = self.app.queue()
        self.workers: list[WorkerProcess] = []
        #: what the server acknowledged, by number; and numbers of which only the server knows
        self.acknowledged: dict[int, Job[Any]] = {}
        self.unsure: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self.workers:
            worker.end()
            if kind is not None:
                print(f"--- worker {worker.pid} ---\n{worker.log}")
        if kind is not None and self._effects.exists():
            print(f"--- effects ---\n{self._effects.read_text()[-3000:]}")
        self.app.close()

    # workers
    def start(
        self,
        *,
        supervised: bool = False,
        fault: str = "",
        url: str = "",
        clock: float = 0.0,
        wait: bool = True,
        alive_file: Path | None = None,
        **order: int,
    ) -> WorkerProcess:
        """Start a worker process, alone or under its supervisor, and wait until it asks for jobs.

        `fault`: where it kills itself; `clock`: seconds its clock is wrong; `order`: concurrency, threads, processes.
        """
        path = sys.path
        env = {name: value for name, value in os.environ.items() if not name.startswith(("RELEVO_", "REDIS_"))}
        env |= {f"RELEVO_{name.upper()}": value for name, value in self._settings.items()}
        env |= {
            "RELEVO_URL": url or self.server.url,
            "RELEVO_ENV": "test",
            jobs.APP: self.name,
            jobs.EFFECTS: str(self._effects),
        }
        if fault:
            env["RELEVO_FAULT"] = fault
        if clock:
            (self._directory / "clock").mkdir(exist_ok=True)
            (self._directory / "clock" / "sitecustomize.py").write_text(_WRONG_CLOCK)
            path = [str(self._directory / "clock"), *path]
            env["RELEVO_TEST_CLOCK"] = str(clock)
        env["PYTHONPATH"] = os.pathsep.join(path)
        if supervised:
            options = [text for name, value in order.items() for text in (f"--{name}", str(value))]
            options += ["--alive-file", str(alive_file)] if alive_file else []
            command = [sys.executable, "-c", _COMMAND, "worker", TARGET, *options]
        else:
            text = msgspec.json.encode(Order(app=TARGET, **order)).decode()  # type: ignore[arg-type]
            command = [sys.executable, "-m", "relevo.worker.child", text]
        log = self._directory / f"worker-{len(self.workers)}.log"
        worker = WorkerProcess(command, env=env, log=log, dies=bool(fault))
        self.workers.append(worker)
        if wait:
            eventually(lambda: worker.ids or not worker.is_running, timeout=START, what="the worker begins")
            assert worker.ids, f"the worker did not begin:\n{worker.log}"
            # Its place on the list of workers is two commands, and a fault between them would leave it without an end.
            eventually(lambda: fault or self.app.run(Call([b"PTTL", self.app.keys.workers])) > 0, what="it is listed")
        return worker

    def environment(self, **variables: str) -> dict[str, str]:
        """For a process of this site that is no worker."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(("RELEVO_", "REDIS_"))}
        env |= {f"RELEVO_{name.upper()}": value for name, value in self._settings.items()}
        env |= {"RELEVO_URL": self.server.url, "RELEVO_ENV": "test", "PYTHONPATH": os.pathsep.join(sys.path)}
        return env | {jobs.APP: self.name, jobs.EFFECTS: str(self._effects)} | variables

    def wait_idle(self, *workers: WorkerProcess, timeout: float = START) -> None:
        """Until the server has these workers on its list of idle ones."""
        key = self.app.keys_of(self.queue.name).key("idle")

        def idle() -> bool:
            waiting: set[bytes] = set(self.app.run(Call([b"ZRANGE", key, 0, -1])))
            return all(worker.ids and worker.ids[-1].encode() in waiting for worker in workers)

        eventually(idle, timeout=timeout, what="the workers wait for jobs")

    def wait_killed(self, worker: WorkerProcess) -> None:
        """Until a worker has died at its fault."""
        eventually(lambda: not worker.is_running, what="the worker dies")
        assert worker.process.returncode == -signal.SIGKILL, worker.log

    # jobs
    def enqueue(self, task: str, n: int, *args: Any, **options: Any) -> Job[Any]:
        """Enqueue job number n."""
        made = self.app.tasks[task]
        if options:
            made = made.using(**options)
        try:
            job = made.enqueue(n, *args)
        except StoreError:
            self.unsure.add(n)
            raise
        self.acknowledged[n] = job
        return job

    def enqueue_many(self, task: str, numbers: range, *args: Any) -> None:
        """Enqueue jobs in one call."""
        made = self.app.tasks[task].enqueue_many(((n, *args), {}) for n in numbers)
        self.acknowledged |= dict(zip(numbers, made, strict=True))

    @contextmanager
    def load(self, task: str = "nap", *args: Any, first: int = 10_000, pause: float = 0.005) -> Iterator[None]:
        """Enqueue one job after the other in a thread, whatever the server does meanwhile."""
        over = threading.Event()

        def enqueue() -> None:
            n = first
            while not over.wait(pause):
                n += 1
                try:
                    self.enqueue(task, n, *args)
                except StoreError:
                    pass

        thread = threading.Thread(target=enqueue, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(30)

    def has_acknowledged(self, count: int) -> bool:
        """Whether the server took that many jobs."""
        return len(self.acknowledged) >= count

    # what happened
    def effects(self, what: str = "", n: int | None = None) -> list[Effect]:
        """What the tasks did, in the order they did it."""
        if not self._effects.exists():
            return []
        found = []
        for line in self._effects.read_text().splitlines():
            when, pid, did, number = line.split()
            found.append(Effect(float(when), int(pid), did, int(number)))
        return [one for one in found if (not what or one.what == what) and (n is None or one.n == n)]

    def wait_effect(self, what: str, n: int, *, times: int = 1, timeout: float = START) -> Effect:
        """The effect number `times` of its kind."""
        found = eventually(
            lambda: self.effects(what, n)[times - 1 : times], timeout=timeout, what=f"{what} {n}, number {times}"
        )
        return found[0]

    def check(self, *, timeout: float = 15.0, duplicates: int = 0, ended: Mapping[int, State] | None = None) -> None:
        """Every acknowledged job has ended once, as it should, and nothing is left behind.

        `ended`: how jobs end that are not simply done; `duplicates`: second starts that the fault allows.
        """
        expected = {n: (ended or {}).get(n, State.DONE) for n in self.acknowledged}
        eventually(lambda: self.queue.stats().living == 0, timeout=timeout, what="no job is left")
        found = {n: job.status() for n, job in self.acknowledged.items()}
        wrong = {n: state for n, state in found.items() if state is not expected[n]}
        assert not wrong, f"jobs that did not end as they should: {wrong}"

        starts = Counter(effect.n for effect in self.effects("start"))
        finished = {effect.n for effect in self.effects("end")}
        done = {n for n, state in expected.items() if state is State.DONE}
        assert not done - finished, f"done, they say, but without an effect: {sorted(done - finished)}"
        again = {n: times for n, times in starts.items() if times > 1 and n in done}
        assert sum(again.values()) - len(again) <= duplicates, f"ran more than once: {again}"

        # Of each job one end is recorded, however often it ran: a late second one is refused.
        recorded = self.queue.stats().totals.get("done", 0)
        assert len(done) <= recorded <= len(done) + len(self.unsure)
        # A worker that just began is about to give its place on the list an end.
        eventually(lambda: not self._left(), what=f"nothing without an end: {self._left()}")
        exited = [worker.pid for worker in self.workers if not worker.was_ended and not worker.is_running]
        assert not exited, f"workers that ended by themselves: {exited}"

    def _left(self) -> list[str]:
        return leaks(self.server, self.name)


def let_pass(seconds: float) -> None:
    """Let a fault last. Not for waiting: what is awaited has an end that can be seen."""
    time.sleep(seconds)


def children_of(pid: int) -> list[int]:
    """Processes that a process started."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def is_gone(pid: int) -> bool:
    """Whether a process, perhaps nobody's child any more, has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
