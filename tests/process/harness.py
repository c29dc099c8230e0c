"""A place for one test: an app of its own, worker processes to harm, and a file of what its tasks did.

with Site(server, tmp_path) as site:
    worker = site.start()
    site.enqueue("gated", 1)     # runs until site.open(1)
    site.wait_effect("start", 1)
    worker.kill()
    site.move("61s")             # its lease has ended
    site.open(1)
    site.drain()                 # a worker in this process runs what can run now
    site.check(again={1})
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
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from uuid import uuid4

import msgspec

from relevo import Job, Relevo, State
from relevo.errors import StoreError
from relevo.store.plan import Call
from relevo.text.durations import seconds
from relevo.worker import Worker
from relevo.worker.child import Order
from tests.clock import let_time_pass
from tests.conftest import PATIENT
from tests.eventually import PATIENCE, eventually
from tests.leaks import leaks
from tests.process import jobs
from tests.servers import Server
from tests.topologies import Cluster
from tests.working import drained, working

TARGET = "tests.process.jobs:app"
#: Seconds for a Python process to start and to ask for jobs.
START = PATIENCE
#: For `Site.move`: longer than a lease by default, and than anything that a dead process may have reserved.
AFTER_LEASES = "2m"
_COMMAND = "import sys; from relevo.cli.main import main; {prelude}; sys.exit(main())"
#: Shifts the clock of a process: Python imports a module of this name before anything else.
_WRONG_CLOCK = """\
import os, time
_shift, _time, _time_ns = float(os.environ["RELEVO_TEST_CLOCK"]), time.time, time.time_ns
time.time = lambda: _time() + _shift
time.time_ns = lambda: _time_ns() + int(_shift * 1e9)
"""


class Effect(NamedTuple):
    """A line of the file: when (monotonic, the same for all processes), in which process, what, of which job."""

    when: float
    pid: int
    what: str
    n: int


class WorkerProcess:
    """A worker as the operating system sees it."""

    def __init__(self, command: list[str], *, env: dict[str, str], log: Path, dies: bool) -> None:
        self._log = log
        #: whether the test ended it, or meant to: one that ends by itself is a failure
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

    @property
    def tracebacks(self) -> list[str]:
        """Tracebacks in its log: what goes wrong around a worker is told in a line, and what its jobs do in records."""
        return [f"Traceback{text[:3000]}" for text in self.log.split("Traceback")[1:]]

    def wait_log(self, text: str, *, times: int = 1) -> None:
        """Until it has logged that."""
        eventually(lambda: self.log.count(text) >= times, what=f"{text!r} in the log")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; after SIGSTOP wait until all its threads have stopped, which takes the kernel a moment."""
        self.process.send_signal(number)
        if number == signal.SIGSTOP:
            threads = Path(f"/proc/{self.process.pid}/task")
            eventually(lambda: all(_is_stopped(thread) for thread in threads.iterdir()), what="it has stopped")

    def kill(self) -> None:
        """kill -9, of this process alone."""
        self.was_ended = True
        self.process.kill()
        self.process.wait()

    def stop(self, *, timeout: float = PATIENCE) -> int:
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


def _is_stopped(thread: Path) -> bool:
    return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"


class Site:
    """One test's app on a server, the processes it starts, and the checker of what became of its jobs."""

    def __init__(self, server: Server | Cluster, directory: Path, **settings: str) -> None:
        self.server = server
        self._directory = directory
        self._settings = {**PATIENT, **settings}
        self._effects = directory / f"effects-{uuid4().hex[:8]}"
        self.name = f"p{uuid4().hex[:12]}"
        #: key of the clock that `move` moves; none in a cluster, whose scripts may ask for keys of their slot alone
        self.clock = "" if isinstance(server, Cluster) else f"relevo-test-clock-{self.name}"
        self.app = self.another_app()
        self.queue = self.app.queue()
        self.workers: list[WorkerProcess] = []
        #: what the server acknowledged, by number; and numbers of which only the server knows
        self.acknowledged: dict[int, Job[Any]] = {}
        self.unsure: set[int] = set()

    def __enter__(self) -> Self:
        os.environ[jobs.EFFECTS] = str(self._effects)  # for a worker in this process
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.environ.pop(jobs.EFFECTS, None)
        for worker in self.workers:
            worker.end()
            if kind is not None:
                print(f"--- worker {worker.pid} ---\n{worker.log}")
        if kind is not None and self._effects.exists():
            print(f"--- effects ---\n{self._effects.read_text()[-3000:]}")
        self.app.close()

    def another_app(self, **settings: Any) -> Relevo:
        """The same app once more, with connections of its own."""
        given = {"url": self.server.url, "env": "test", "_clock_key": self.clock, **self._settings, **settings}
        return jobs.build(self.name, **given)

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
        prelude: str = "pass",
        target: str = "",
        variables: Mapping[str, str] | None = None,
        **order: Any,
    ) -> WorkerProcess:
        """Start a worker process, alone or under its supervisor, and wait until it asks for jobs.

        `fault`: where it kills itself; `clock`: seconds its clock is wrong; `prelude`: Python that a supervisor runs
        first; `target`: the app, if it is another one; `variables`: of its environment; `order`: concurrency, threads,
        processes.
        """
        target = target or TARGET
        env = self.environment(**({"RELEVO_URL": url} if url else {}), **(variables or {}))
        if fault:
            env["RELEVO_FAULT"] = fault
        if clock:
            (self._directory / "clock").mkdir(exist_ok=True)
            (self._directory / "clock" / "sitecustomize.py").write_text(_WRONG_CLOCK)
            env["PYTHONPATH"] = os.pathsep.join([str(self._directory / "clock"), *sys.path])
            env["RELEVO_TEST_CLOCK"] = str(clock)
        if supervised:
            options = [text for name, value in order.items() for text in (f"--{name}", str(value))]
            options += ["--alive-file", str(alive_file)] if alive_file else []
            command = [sys.executable, "-c", _COMMAND.format(prelude=prelude), "worker", target, *options]
        else:
            text = msgspec.json.encode(Order(app=target, **order)).decode()
            command = [sys.executable, "-m", "relevo.worker.child", text]
        log = self._directory / f"worker-{len(self.workers)}.log"
        worker = WorkerProcess(command, env=env, log=log, dies=bool(fault))
        self.workers.append(worker)
        if wait:
            self.wait_begun(worker, fault=bool(fault))
        return worker

    def environment(self, **variables: str) -> dict[str, str]:
        """For a process of this site."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(("RELEVO_", "REDIS_"))}
        env |= {f"RELEVO_{name.upper()}": value for name, value in self._settings.items()}
        env |= {"RELEVO_URL": self.server.url, "RELEVO_ENV": "test", "PYTHONPATH": os.pathsep.join(sys.path)}
        return env | {jobs.APP: self.name, jobs.EFFECTS: str(self._effects), jobs.CLOCK: self.clock} | variables

    def wait_begun(self, *workers: WorkerProcess, fault: bool = False) -> None:
        """Until these workers ask for jobs."""
        eventually(lambda: all(worker.ids or not worker.is_running for worker in workers), what="the workers begin")
        for worker in workers:
            assert worker.ids, f"the worker did not begin:\n{worker.log}"
        # A place on the list of workers is two commands, and a fault between them would leave it without an end.
        eventually(
            lambda: fault or self.app.engine.run(Call([b"PTTL", self.app.engine.keys.workers])) > 0, what="it is listed"
        )

    def drain(self, **options: Any) -> Worker:
        """Run what can run now, with a worker in this process that stops when nothing is left to do."""
        return drained(self.app, **options)

    def working(self, **options: Any) -> working:
        """A worker in a thread of this process, for as long as a `with` block lasts."""
        return working(self.app, **options)

    # time
    def move(self, duration: str) -> None:
        """Move the clock of this site's scripts: leases end, and what is delayed is due.

        Leases of living workers end, too, and an idle worker rests up to 12 s before it asks by itself: start one
        after this, or enqueue a job.
        """
        assert isinstance(self.server, Server)
        ms = round(seconds(duration.removeprefix("-")) * 1000)
        let_time_pass(self.server, self.clock, -ms if duration.startswith("-") else ms)

    def now_ms(self) -> int:
        """What the server's clock shows, as moved."""
        return self.app.engine.run(self.app.engine.now_ms())

    def wait_idle(self, *workers: WorkerProcess, timeout: float = START) -> None:
        """Until the server has these workers on its list of idle ones."""
        key = self.app.engine.keys_of(self.queue.name).key("idle")

        def idle() -> bool:
            waiting: set[bytes] = set(self.app.engine.run(Call([b"ZRANGE", key, 0, -1])))
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

    def open(self, *numbers: int) -> None:
        """Let gated jobs of these numbers go on."""
        for n in numbers:
            Path(f"{self._effects}-open-{n}").touch()
            if (fifo := Path(f"{self._effects}-fifo-{n}")).exists():
                os.close(os.open(fifo, os.O_WRONLY))

    @contextmanager
    def load(self, task: str = "nap", *args: Any, first: int = 10_000, pause: float = 0.005) -> Iterator[None]:
        """Enqueue one job after the other in a thread, whatever happens to the server."""
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
            thread.join(PATIENCE)

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

    def check(
        self,
        *,
        timeout: float = PATIENCE,
        duplicates: int = 0,
        again: Collection[int] = (),
        ended: Mapping[int, State] | None = None,
    ) -> None:
        """Every acknowledged job has ended once, as it should, and nothing is left behind.

        `ended`: how jobs end that are not simply done; `again`: jobs that ran exactly twice; `duplicates`: how many
        second starts a fault allows besides, where chance decides on them.
        """
        expected = {n: (ended or {}).get(n, State.DONE) for n in self.acknowledged}
        eventually(lambda: self.queue.stats().living == 0, timeout=timeout, what="no job is left")
        found = {n: job.state() for n, job in self.acknowledged.items()}
        wrong = {n: state for n, state in found.items() if state is not expected[n]}
        assert not wrong, f"jobs that did not end as they should: {wrong}"

        starts = Counter(effect.n for effect in self.effects("start"))
        finished = {effect.n for effect in self.effects("end")}
        done = {n for n, state in expected.items() if state is State.DONE}
        assert not done - finished, f"done without an effect: {sorted(done - finished)}"
        not_twice = {n: starts[n] for n in again if starts[n] != 2}
        assert not not_twice, f"should have run twice: {not_twice}"
        more = {n: times for n, times in starts.items() if times > 1 and n in done and n not in again}
        assert sum(more.values()) - len(more) <= duplicates, f"ran more than once: {more}"

        # Of each job one end is recorded, however often it ran: a late second one is refused.
        recorded = self.queue.stats().totals.get("done", 0)
        assert len(done) <= recorded <= len(done) + len(self.unsure)
        # A worker that just began is about to give its place on the list an end.
        eventually(lambda: not self._left(), what=f"nothing without an end: {self._left()}")
        exited = [worker.pid for worker in self.workers if not worker.was_ended and not worker.is_running]
        assert not exited, f"workers that ended by themselves: {exited}"
        traces = [trace for worker in self.workers for trace in worker.tracebacks]
        assert not traces, f"a worker logged a traceback:\n{traces[0]}"

    def _left(self) -> list[str]:
        return leaks(self.server, self.name)


def let_pass(seconds: float) -> None:
    """Let a fault last. Not for waiting: what is awaited has an end that can be seen."""
    time.sleep(seconds)


def children_of(pid: int) -> list[int]:
    """Processes that a process started, in any of its threads."""
    found = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(child) for child in thread.read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


def is_gone(pid: int) -> bool:
    """Whether a process, also one whose parent has ended, has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
