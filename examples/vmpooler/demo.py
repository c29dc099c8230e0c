"""Run the pooler and its provider, let things go wrong, and show what happens: python examples/vmpooler/demo.py

It starts the processes that an operator would start, kills them, plays the people who want machines and the operator,
and reads the logs. Without RELEVO_URL all share the embedded server. It ends by itself; the exit code is 1 if anything
did not come as it should.
"""

from __future__ import annotations

import asyncio
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from relevo import Relevo

FOLDER = Path(__file__).parent
PLACE = tempfile.mkdtemp(prefix="vmpooler-")
# What an operator would set before anything of the pooler is imported.
os.chdir(FOLDER)
os.environ["VMPOOLER_PROVIDER"] = f"{PLACE}/provider"
os.environ["VMPOOLER_CONFIG"] = str(FOLDER / "demo.yaml")
os.environ.setdefault("RELEVO_ENV", f"demo-{os.getpid()}")  # two demos at once must not get each other's machines

from pooler import chores, desk  # noqa: E402
from pooler.estate import kinds, provider, requests, sizes, vms  # noqa: E402
from pooler.service import app  # noqa: E402
from provider.machines import Machines  # noqa: E402

#: What a worker writes before the output of a job.
JOB = re.compile(r"\[\S+ \w{20}\] ")
WORKER = [sys.executable, "-m", "relevo.cli.main", "worker", "pooler.service:app"]
SHOWN = re.compile(r"(?:vmpooler|relevo)\.(?P<who>clone|check|destroy|request|provider|supervisor): (?P<text>.*)")
#: Seconds in which anything must happen.
BOUND = 30.0


class Logs:
    """What all processes write, in the order in which they write it."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._read, self.write = os.pipe()
        self._rest = b""
        self.last: deque[str] = deque(maxlen=20)

    def until(self, *patterns: str) -> list[re.Match[str]]:
        """Show lines until all that we wait for has been said, in whatever order; gives it as it was asked for."""
        found: dict[int, re.Match[str]] = {}
        for line in self._lines(f"somebody says {' and '.join(patterns)}"):
            for number, pattern in enumerate(patterns):  # a line is the answer to one question
                if number not in found and (match := re.search(pattern, line)):
                    found[number] = match
                    break
            if len(found) == len(patterns):
                break
        return [found[number] for number in range(len(patterns))]

    def wait(self, is_so: Callable[[], bool], what: str) -> None:
        """Show lines until something is so."""
        for line in self._lines(what):
            if not line and is_so():
                return

    def _lines(self, what: str) -> Iterator[str]:
        """What is written, and '' where nothing is for a moment."""
        until = time.monotonic() + BOUND
        while time.monotonic() < until:
            line, newline, rest = self._rest.partition(b"\n")
            if newline:
                self._rest = rest
                self.last.append(JOB.sub("", line.decode(errors="replace")))
                if shown := SHOWN.search(self.last[-1]):
                    self.show(shown["who"], shown["text"])
                yield self.last[-1]
            elif select.select([self._read], [], [], 0.05)[0]:
                self._rest += os.read(self._read, 65_536)
            else:
                yield ""
        raise TimeoutError(f"for {BOUND:g} s we waited until {what}.")

    def show(self, who: str, text: str) -> None:
        """One line on the screen."""
        print(f"{time.monotonic() - self._began:5.1f} s  {who:<10}  {text}", flush=True)


class Machinery:
    """The processes, each of which can be killed: a provider, and two workers, for a pooler need not be alone."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._running: list[subprocess.Popen[bytes]] = []
        self.provider = self.start_provider()
        for _ in range(2):
            self._start(*WORKER)
        started = logs.until(*[r"\[(\d+)\] relevo\.worker: worker \w+: app"] * 2)
        #: Of each worker the process that does the work; its supervisor starts another one.
        self.workers = [int(line[1]) for line in started]

    def start_provider(self) -> subprocess.Popen[bytes]:
        """Start it, with the machines it had."""
        self.provider = self._start(sys.executable, "-m", "provider", os.environ["VMPOOLER_PROVIDER"])
        self._logs.until("the provider is there")
        return self.provider

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        write = self._logs.write
        process = subprocess.Popen(command, cwd=FOLDER, stdout=write, stderr=write, start_new_session=True)
        self._running.append(process)
        return process

    def stop(self) -> None:
        """End all of it."""
        for process in reversed(self._running):  # the worker first, which asks the provider
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def machinery(logs: Logs) -> Iterator[Machinery]:
    """Provider and worker, until all is done."""
    running = Machinery(logs)
    try:
        yield running
    finally:
        running.stop()


def tell(do: str, **given: object) -> Any:
    """Say something to the provider."""
    return asyncio.run(provider.ask(do, **given))


def show_health(logs: Logs, app: Relevo) -> None:
    """What an operator sees with `relevo health`."""
    health = app.health()
    logs.show("health", "; ".join([health.status.value, *(reason.text for reason in health.reasons)]))


def the_stock_is_filled(logs: Logs) -> None:
    """Clone, boot, ready; nobody asked for it."""
    logs.wait(is_stocked, "the stock is full")


def machines_are_used(logs: Logs) -> tuple[str, str]:
    """ready, running, migrating, running, completed, destroyed. Those cloned instead never come up: their names."""
    used = {pool: desk.checkout(pool) for pool in ("centos-7", "debian-12")}
    tell("boot", seconds=3600)
    for pool, vm in used.items():
        assert vm is not None
        chores.migrate_vm.enqueue(vm, pool, "host-2").result(timeout=BOUND)
        logs.show("demo", f"{vm} is handed out, moved to {tell('look', vm=vm)['host']}, and given back")
        desk.give_back(vm, pool)
    *_, slow, stuck = logs.until(
        *(f"{vm}: destroyed" for vm in used.values()), r"(vm-centos-7-\w+): cloned", r"(vm-debian-12-\w+): cloned"
    )
    tell("boot", seconds=0.2)
    # What a process leaves behind that dies between two lines of its code: nobody will ever clone this one.
    vms["debian-12"].add("vm-debian-12-half", "pending", kind="pool", template="templates/debian-12")
    logs.show("demo", f"{slow[1]} and {stuck[1]} will not come up, vm-debian-12-half was never cloned")
    return slow[1], stuck[1]


def requests_are_made(logs: Logs) -> None:
    """One that is filled, after an attempt that failed; and one that cannot be."""
    tell("fail", what="clone", vm="", times=1)
    good = desk.ask_for("centos", 2)
    logs.until(f"{good}: ready")
    made = desk.collect(good)
    logs.show("demo", f"{good} is {desk.status(good)['status']}, {' and '.join(made)} are handed out, and given back")
    for vm in made:
        desk.give_back(vm, "centos-7")
    logs.until(*(f"{vm}: destroyed" for vm in made))
    bad = desk.ask_for("windows-2012", 1)
    logs.until(f"{bad}: failed")
    logs.show("demo", f"{bad} is {desk.status(bad)['status']}: {desk.status(bad)['error_message']}")


def the_workers_are_killed(logs: Logs, running: Machinery) -> None:
    """Both, in the middle of a clone. Their supervisors start others, and what they did is done again, or goes on."""
    tell("slow", seconds=1)
    wanted = desk.ask_for("debian-12", 1)
    logs.wait(lambda: f"{wanted}-1" in Path(f"{PLACE}/provider.json").read_text("utf-8"), "the provider clones")
    logs.show(
        "demo", f"kill -9 {running.workers[0]} {running.workers[1]}, which are both workers, in the middle of a clone"
    )
    for process in running.workers:
        os.kill(process, signal.SIGKILL)
    logs.until(f"{wanted}: ready")
    tell("slow", seconds=0)
    (made,) = desk.collect(wanted)
    logs.show("demo", f"{wanted} is {desk.status(wanted)['status']} all the same, {made} is given back")
    desk.give_back(made, "debian-12")
    logs.until(f"{made}: destroyed")


def the_provider_is_killed(logs: Logs, running: Machinery, slow: str) -> None:
    """Checks of ready machines wait for it. When it is back, those that are there are spared, the lost one is not."""
    lost = vms["centos-7"].items("ready")[0].id
    running.provider.kill()
    running.provider.wait()
    Machines(Path(f"{PLACE}/provider.json")).perform("forget", vm=lost)
    logs.show("demo", f"kill -9 {running.provider.pid}, which is the provider; it has lost {lost}")
    logs.until(f"{lost}: the provider does not answer")
    running.start_provider()
    logs.show("demo", "the provider is there again")
    given_up = {lost, slow}
    logs.wait(lambda: given_up <= {letter.entity for letter in vms["centos-7"].dead()}, "both are given up")


def what_is_stale_is_purged(logs: Logs, app: Relevo, slow: str, stuck: str) -> None:
    """First what would be done, then the same. The machines are still at the provider, where they are discovered."""
    logs.wait(lambda: vms["centos-7"].counts()["ready"] == 2, "those given up are replaced")
    tell("fail", what="destroy", vm=stuck, times=3)
    dry, live = app.purge(dry_run=True), app.purge(dry_run=False)
    for report in (dry, live):
        for one in sorted(report.purged, key=lambda one: one.id):
            verb = "would be" if report.dry_run else "is"
            logs.show("purge", f"{one.id} {verb} {one.what}: {one.reason}, {one.state} for {one.age_ms // 1000} s")
    assert [one.id for one in dry.purged] == [one.id for one in live.purged]
    logs.wait(lambda: tell("look", vm=slow) is None, f"{slow} is destroyed")
    logs.wait(lambda: bool(app.dead.list(queue="tasks")), f"the destruction of {stuck} is a dead letter")


def somebody_looks_at_the_dead_letters(logs: Logs, app: Relevo, stuck: str) -> None:
    """All that went wrong, and one of it is done again."""
    show_health(logs, app)
    undone = app.dead.list(queue="tasks")
    for row in app.dead.list(queue="clone") + undone:
        logs.show(
            "dead", f"{row.queue}: {row.task} {row.name.split()[1]}, {row.reason}: {row.error.rpartition('.')[2]}"
        )
    for pool in vms.values():
        for letter in reversed(pool.dead()):
            why = f"{letter.reason}: {letter.error_class}: {letter.error_message}"
            logs.show(
                "dead", f"{letter.queue_from}: {letter.entity}, {re.sub('for .*s, the', 'for too long, the', why)}"
            )
    app.dead.retry([row.id for row in undone])
    logs.show("demo", f"the destruction of {stuck} is retried")
    logs.until(f"{stuck}: destroyed")
    logs.wait(is_stocked, "the stock is full again")


def is_stocked() -> bool:
    """Whether as many machines are ready as there should be."""
    return all(vms[name].counts()["ready"] == kind.size for name, kind in kinds.items())


def jobs_of(app: Relevo) -> int:
    """How many jobs there are."""
    return sum(app.queue(name).stats().living for name in app.queues())


def nothing_is_left(logs: Logs, app: Relevo) -> None:
    """The stock is given up, and what is known of failures is discarded."""
    for name in vms:
        desk.resize(name, 0)
    logs.wait(lambda: not any(sum(pool.counts().values()) for pool in vms.values()), "all machines are gone")
    app.schedules.get("check_pools").pause()  # else the stock would be filled again
    logs.wait(lambda: not jobs_of(app), "nothing is left to do")
    for name in vms:
        sizes.remove(name)
    logs.show("demo", f"{app.dead.discard(all=True)} dead letters are discarded")
    show_health(logs, app)
    pools = (*vms.values(), requests, sizes)
    count = sum(sum(pool.counts().values()) for pool in pools)
    at_provider = sum(len(tell("inventory", pool=name)) for name in vms)
    dead = len(app.dead.list())
    logs.show("left", f"{count} entities, {jobs_of(app)} jobs, {dead} dead letters, {at_provider} machines")


def main() -> int:
    """Show it all: the exit code."""
    logs = Logs()
    try:
        with machinery(logs) as running:
            the_stock_is_filled(logs)
            show_health(logs, app)
            slow, stuck = machines_are_used(logs)
            requests_are_made(logs)
            the_workers_are_killed(logs, running)
            the_provider_is_killed(logs, running, slow)
            what_is_stale_is_purged(logs, app, slow, stuck)
            somebody_looks_at_the_dead_letters(logs, app, stuck)
            nothing_is_left(logs, app)
    except TimeoutError as error:
        print(error, "The last lines of the logs:", *logs.last, sep="\n", file=sys.stderr)
        return 1
    finally:
        app.close()
        shutil.rmtree(PLACE, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
