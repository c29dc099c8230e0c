"""Keeps worker processes running: starts them, starts anew what dies, passes signals on, and renews the leases of a
process that cannot do so itself.

It imports nothing of the app, so whatever the app does cannot take it down.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from relevo.engine.turn import MOST, abandon, renew
from relevo.engine.workers import silenced
from relevo.errors import StoreError
from relevo.settings import Settings
from relevo.store.blocking import BlockingDriver
from relevo.store.keys import AppKeys, QueueKeys
from relevo.store.plan import Call
from relevo.store.source import Source
from relevo.worker.child import CANNOT_START, START_ANEW, STOPPED, Contact, Order
from relevo.worker.ledger import Entry, Ledger
from relevo.worker.notify import notify, watchdog_every
from relevo.worker.pulse import FRESH
from relevo.worker.reload import CHANGED

log = logging.getLogger("relevo.supervisor")

#: A process that lived less than this many seconds waits longer and longer before it is started anew.
SHORT_LIFE = 5.0
LONGEST_WAIT = 10.0
#: Beyond the grace time, a process gets so many more seconds to tell what became of its jobs.
KILL_AFTER = 15.0
#: A job is stopped by its own process when its time is up. So many seconds later, that process must be blocked by it.
HANGS_AFTER = 10.0


class Child:
    """One worker process and what it shares with us."""

    def __init__(self, order: Order, number: int) -> None:
        self.number = number
        self.contact: Contact | None = None
        self.started = time.monotonic()
        self._order = order
        self._word = b""
        cells = order.concurrency or 1000
        cells += order.threads or 1000
        fd = Ledger.make(cells)
        life_read, self._life_write = os.pipe()
        self.word_fd, word_write = os.pipe()
        sent = msgspec.structs.replace(order, ledger_fd=fd, ledger_cells=cells, life_fd=life_read, word_fd=word_write)
        self.process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "relevo.worker.child", msgspec.json.encode(sent).decode()],
            pass_fds=(fd, life_read, word_write),
        )
        self.ledger = Ledger(fd, cells)
        for ours in (fd, life_read, word_write):
            os.close(ours)

    def notify(self) -> bool:
        """Read what the process says of itself; True when it is ready."""
        data = os.read(self.word_fd, 65536)
        self._word += data
        if data and not self._word.endswith(b"\n"):
            return False
        os.close(self.word_fd)
        self.word_fd = -1
        if self._word:
            self.contact = msgspec.json.decode(self._word, type=Contact)
        return self.contact is not None

    @property
    def is_stopped(self) -> bool:
        """Whether the process is stopped (SIGSTOP): its jobs must be free to run elsewhere."""
        try:
            return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
        except (OSError, IndexError):
            return True  # unknown: do not renew its leases

    def close(self) -> None:
        """Release what we share."""
        self.ledger.close()
        for fd in (self._life_write, self.word_fd):
            if fd >= 0:
                with contextlib.suppress(OSError):
                    os.close(fd)


class Supervisor:
    """Runs until it is stopped, or until all processes of a burst are done."""

    def __init__(self, order: Order, processes: int, settings: Settings, *, alive_file: Path | None = None) -> None:
        self._order = msgspec.structs.replace(order, pulse=alive_file is not None)
        self._alive_file = alive_file
        #: called with how the app is reached, as soon as a process knows
        self.on_contact: Callable[[Contact], None] | None = None
        self._processes = processes
        self._settings = settings
        self._children: dict[int, Child] = {}
        self._again: list[tuple[float, int]] = []  # (when, number)
        self._short_lives = 0
        self._started = False
        self._signals = 0
        self._stop_by = 0.0
        self._code = 0
        self._driver: BlockingDriver | None = None

    def run(self) -> int:
        """Supervise: the exit code."""
        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for caught in (signal.SIGTERM, signal.SIGINT):
            signal.signal(caught, self._stop)
        for harmless in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(harmless, lambda number, _: log.info("%s is ignored", signal.Signals(number).name))
        signal.signal(signal.SIGCHLD, lambda *_: None)  # wakes the wait below
        for number in range(self._processes):
            self._start(number)
        last_alive = last_keep = 0.0
        every = watchdog_every()
        while self._children or (self._again and not self._signals):
            words = [child.word_fd for child in self._children.values() if child.word_fd >= 0]
            ready, _, _ = select.select([read, *words], [], [], self._wait())
            if read in ready:
                os.read(read, 4096)
            for child in list(self._children.values()):
                if child.word_fd in ready and child.notify():
                    self._heard(child)
            self._reap()
            now = time.monotonic()
            if now - last_keep > self._settings.lease / 4:
                last_keep = now
                self._keep_leases(now)
                self._end_hanging(now)
            if every is not None and now - last_alive > every and self._is_healthy(now):
                last_alive = now
                notify("WATCHDOG=1")
            self._show_life(now)
            if self._stop_by and now > self._stop_by:
                for child in self._children.values():
                    child.process.kill()
            while self._again and self._again[0][0] <= now:
                self._start(self._again.pop(0)[1])
        signal.set_wakeup_fd(-1)
        if self._alive_file is not None:
            self._alive_file.unlink(missing_ok=True)
        return self._code

    def _heard(self, child: Child) -> None:
        if self.on_contact is not None and child.contact is not None:
            self.on_contact(child.contact)
        if all(one.contact for one in self._children.values()):
            notify("READY=1\nSTATUS=working")

    def _wait(self) -> float:
        return min(0.2 if self._again or self._stop_by else 1.0, self._settings.lease / 8)

    def _start(self, number: int) -> None:
        if self._signals:
            return
        child = Child(msgspec.structs.replace(self._order, is_first=not self._started), number)
        self._started = True
        self._children[child.process.pid] = child
        if self._signals:  # the signal came while the process was made, before it was among the children
            _tell_to_stop(child)

    def _stop(self, number: int, _frame: object) -> None:
        self._begin_to_stop(f"{signal.Signals(number).name}: stopping; again to hand running jobs back at once")

    def _begin_to_stop(self, why: str) -> None:
        self._signals += 1
        if self._signals == 1:
            notify("STOPPING=1")
            if self._children:
                log.info("%s", why)
            graces = [child.contact.grace for child in self._children.values() if child.contact is not None]
            self._stop_by = time.monotonic() + max(graces, default=self._settings.grace) + KILL_AFTER
        elif self._signals == 2:
            self._stop_by = time.monotonic() + KILL_AFTER
        for child in self._children.values():
            _tell_to_stop(child)

    def _reap(self) -> None:
        for pid, child in list(self._children.items()):
            code = child.process.poll()
            if code is None:
                continue
            del self._children[pid]
            if code not in (STOPPED, START_ANEW, CHANGED):
                self._free_jobs(child)
            child.close()
            if code == STOPPED or self._signals:
                continue
            if code == CANNOT_START:
                log.error("worker process %d cannot start; see above", pid)
                self._code = CANNOT_START
                self._begin_to_stop("no other process will start")
                continue
            if code == CHANGED:
                self._again.insert(0, (0.0, child.number))
                continue
            lived = time.monotonic() - child.started
            self._short_lives = self._short_lives + 1 if lived < SHORT_LIFE else 0
            pause = min(LONGEST_WAIT, 0.1 * 2**self._short_lives) if self._short_lives > 1 else 0.0
            if code != START_ANEW:
                how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
                log.error("worker process %d died after %.1f s (%s); another starts in %.1f s", pid, lived, how, pause)
            self._again.append((time.monotonic() + pause, child.number))
            self._again.sort()

    def _keep_leases(self, now: float) -> None:
        """Renew for a process that does not renew them itself, because a task holds Python's lock."""
        for child in self._children.values():
            contact = child.contact
            if contact is None or now - child.ledger.last_beat < contact.lease_ms / 2000 or child.is_stopped:
                continue
            in_time = [entry for entry in child.ledger.entries() if not entry.deadline or now < entry.deadline]
            calls = _of_jobs(contact, in_time, partial(renew, lease_ms=contact.lease_ms))
            if in_time and self._tell(contact, calls):
                log.info("%d leases renewed for a process that is busy", len(in_time))

    def _end_hanging(self, now: float) -> None:
        """Kill a process that should long have stopped a job and cannot: the job blocks its event loop."""
        for child in self._children.values():
            late = next((e for e in child.ledger.entries() if e.deadline and now > e.deadline + HANGS_AFTER), None)
            if late is not None:
                log.error("job %s hangs %g s beyond its time limit; its process is killed", late.id, HANGS_AFTER)
                child.process.kill()

    def _free_jobs(self, child: Child) -> None:
        """It died before our eyes: neither what it was running need wait for that, nor those who list workers."""
        contact, entries = child.contact, list(child.ledger.entries())
        if contact is None:
            return
        silence = silenced(AppKeys(contact.prefix, contact.env, contact.app), contact.worker)
        if self._tell(contact, [*_of_jobs(contact, entries, abandon), silence]) and entries:
            log.warning("%d jobs of process %d are free to run again", len(entries), child.process.pid)

    def _tell(self, contact: Contact, calls: Iterable[Call[Any]]) -> bool:
        reached_all = True
        if self._driver is None:
            source = Source(contact.url, data_dir=Path(contact.data_dir), connect_timeout=2.0, call_timeout=2.0)
            self._driver = BlockingDriver(source)
        for call in calls:
            try:
                self._driver.perform(call, patience=0.5)
            except StoreError as error:
                log.debug("the server is away: %s", error)
                if not self._driver.is_cluster:
                    return False
                reached_all = False  # queues may be on other nodes
        return reached_all

    def _show_life(self, now: float) -> None:
        """Touch the file that probes look at, while the loop of every process runs and the server answers it."""
        if self._alive_file is None or len(self._children) < self._processes:
            return
        if all(now - child.ledger.last_pulse < FRESH for child in self._children.values()):
            try:
                self._alive_file.touch()
            except OSError as error:
                log.warning("%s cannot be touched: %s", self._alive_file, error.strerror)

    def _is_healthy(self, now: float) -> bool:
        """Every process has shown life within three leases, by its own beat."""
        return all(
            now - max(child.started, child.ledger.last_beat) < self._settings.lease * 3 or any(child.ledger.entries())
            for child in self._children.values()
        )


def _tell_to_stop(child: Child) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.process.send_signal(signal.SIGTERM)


def _of_jobs(
    contact: Contact, entries: Sequence[Entry], plan: Callable[[QueueKeys, list[tuple[str, int]]], Call[Any]]
) -> Iterator[Call[Any]]:
    """The same call for all these jobs, queue by queue."""
    for number, address in enumerate(contact.queues):
        jobs = [(entry.id, entry.token) for entry in entries if entry.queue == number]
        for start in range(0, len(jobs), MOST):
            yield plan(QueueKeys(address), jobs[start : start + MOST])
