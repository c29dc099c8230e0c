"""Runs jobs whose workers died repeatedly in separate processes, to find the job that kills them.

Suspects share child processes. When one dies, the culprit is unknown, so all jobs that ran in it go back to their
queue, and the next time at most half as many of them share a process. A job that was alone in a process that died is
the culprit. So of n suspects

- all run at the same time, including those beside the culprit, as long as `QUARANTINES` processes are enough;
- each is run again at most log2(n) times, regardless of the number of culprits;
- one culprit costs log2(n) + 1 processes.

All of this happens on the event loop, except for the two threads of each process: one sends, the other receives.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable

from relevo.checkpoints.keeping import Interruption
from relevo.worker.executors.executor import OnEnd, OnStart
from relevo.worker.executors.handover import Ended
from relevo.worker.executors.process_link import Child, Gone
from relevo.worker.executors.process_messages import (
    PARENTS_SIGNALS,
    Answer,
    Answered,
    Failed,
    Output,
    Pause,
    Progressed,
    Ready,
    Stop,
)
from relevo.worker.executors.processes import (
    CLOSE_PATIENCE,
    START_PATIENCE,
    ended_with,
    failure,
    function_of,
    order_of,
    remote_failure,
)
from relevo.worker.run import DeadlinePassed, ProcessDied, RemoteFailure, Run

log = logging.getLogger("relevo.worker")

#: Processes for suspects. One culprit among n long-running jobs needs log2(n) + 1: 11 for a thousand.
QUARANTINES = 12


class Quarantine:
    """Runs suspects."""

    patience = 5.0

    def __init__(self, concurrency: int, threads: int, on_start: OnStart, on_end: OnEnd) -> None:
        #: how many may run at once on event loops, and in threads
        self._room = {True: concurrency, False: threads}
        self._on_start = on_start
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Run] = deque()
        self._groups: list[_Group] = []
        self._places: dict[Run, _Group] = {}
        self._is_closed = False

    def submit(self, run: Run) -> None:
        """Run it as soon as there is room."""
        self._waiting.append(run)
        self._place_waiting()

    def interrupt(self, run: Run) -> None:
        """Stop it; the others in its process go on."""
        if (group := self._places.get(run)) is not None:
            group.notify(Stop, run)

    def ask_to_pause(self, run: Run) -> None:
        """Notify it that the worker is stopping."""
        if (group := self._places.get(run)) is not None:
            group.notify(Pause, run)

    def abandon(self, run: Run) -> bool:
        """End the process of a run that does not stop. The others in it go back to their queue."""
        if (group := self._places.get(run)) is not None:
            group.end()
        return False

    def close(self) -> None:
        """Kill all processes and wait for their end."""
        self._is_closed = True
        deadline = time.monotonic() + CLOSE_PATIENCE
        for group in self._groups:
            group.end()
        for group in self._groups:
            group.join(max(0.0, deadline - time.monotonic()))

    def _place_waiting(self) -> None:
        still: deque[Run] = deque()
        for run in self._waiting:
            if not run.settled and not self._place(run):
                still.append(run)
        self._waiting = still

    def _place(self, run: Run) -> bool:
        is_on_loop = run.task.executor == "loop"
        if self._is_closed or not self._room[is_on_loop]:
            return False
        most = max(1, run.held.story.among // 2) if run.held.story.among else self._room[True] + self._room[False]
        open_to_it = [group for group in self._groups if group.has_room(most)]
        # New suspects are halved at once. Others fill up existing processes, so that few are needed.
        if run.held.story.among == 0 and len(self._groups) < 2:
            open_to_it = []
        if open_to_it:
            group = min(open_to_it, key=lambda one: one.size if run.held.story.among == 0 else -one.size)
        elif len(self._groups) < QUARANTINES:
            group = _Group(self, self._on_start, self._loop)
            self._groups.append(group)
        else:
            return False
        self._room[is_on_loop] -= 1
        self._places[run] = group
        group.add(run, most)
        return True

    # called by groups, on the loop
    def ended(self, group: _Group, ended: Ended) -> None:
        """One run of a group has ended."""
        run = ended[0]
        self._leave(group, run)
        self._on_end(*ended)
        if not group.size:
            group.end(is_idle=True)
        self._place_waiting()

    def gone(self, group: _Group, how: str, was_ended: bool) -> None:
        """The process of a group has died or was ended by the worker."""
        self._groups.remove(group)
        ran, others = group.at_its_end()
        for run in (*ran, *others):
            self._leave(group, run)
        if ran and not was_ended:
            then = "; they run again, half as many in a process" if len(ran) > 1 else ""
            log.warning("a process with %d suspects %s%s", len(ran), how, then)
        for run in ran:
            text = f"{run.task.target}: the process that ran it"
            if was_ended and not run.stopped:
                error: BaseException = Interruption(f"{text} was ended because of another job")
            else:
                beside = f" and {len(ran) - 1} other suspects" if len(ran) > 1 else ""
                error = ProcessDied(f"{text}{beside} {how}", among=1 if was_ended else len(ran))
            self._on_end(run, None, error)
        self._waiting.extendleft(reversed(others))
        self._place_waiting()

    def _leave(self, group: _Group, run: Run) -> None:
        if self._places.get(run) is group:
            del self._places[run]
            self._room[run.task.executor == "loop"] += 1
        group.remove(run)


class _Group:
    """A child process and the suspects in it."""

    def __init__(self, owner: Quarantine, on_start: OnStart, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._on_start = on_start
        self._loop = loop
        self._most = 0
        self._last = 0
        self._runs: dict[int, Run] = {}
        self._numbers: dict[Run, int] = {}
        #: numbers of runs that have begun or are about to
        self._begun: set[int] = set()
        self._inbox: queue.SimpleQueue[int | Stop | Pause | None] = queue.SimpleQueue()
        #: answers to the start and to functions; None: the child is gone
        self._prepared: queue.SimpleQueue[Answer | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._is_ended = False
        # The kernel kills the child when the thread that started it ends, so the receiving thread starts it.
        self._thread = threading.Thread(target=self._listen, name="relevo suspects", daemon=True)
        self._thread.start()

    @property
    def size(self) -> int:
        return len(self._runs)

    def has_room(self, most: int) -> bool:
        """Whether there is room for one more that shares its process with at most `most - 1` others."""
        return not self._is_ended and len(self._runs) < min(most, self._most)

    def add(self, run: Run, most: int) -> None:
        """Run it."""
        self._most = min(most, self._most) if self._runs else most
        self._last += 1
        self._runs[self._last], self._numbers[run] = run, self._last
        self._inbox.put(self._last)

    def remove(self, run: Run) -> None:
        """Remove a run that has ended."""
        number = self._numbers.pop(run, 0)
        self._runs.pop(number, None)
        self._begun.discard(number)

    def notify(self, what: type[Stop | Pause], run: Run) -> None:
        """Send a message to one of its runs."""
        self._inbox.put(what(self._numbers[run]))

    def at_its_end(self) -> tuple[list[Run], list[Run]]:
        """The runs that have begun, and those that have not."""
        begun = [run for number, run in self._runs.items() if number in self._begun]
        return begun, [run for number, run in self._runs.items() if number not in self._begun]

    def end(self, *, is_idle: bool = False) -> None:
        """End the process with all its runs. One that has none (`is_idle`) leaves the app's lifespan first."""
        with self._lock:
            self._is_ended = True
            if self._child is not None and not (is_idle and self._child.has_lifespan):
                self._child.kill()
        self._inbox.put(None)

    def join(self, patience: float) -> None:
        """Wait until the process is gone."""
        self._thread.join(patience)

    # in the receiving thread
    def _listen(self) -> None:
        # Inherited by the child: until it has its handlers, a signal meant for the parent must not end it.
        signal.pthread_sigmask(signal.SIG_BLOCK, PARENTS_SIGNALS)
        try:
            child = Child("quarantine_child")
        except Exception as error:  # noqa: BLE001  # no memory, too many processes …: the runs must end in any case
            self._fail(f"no process could be started for it: {error}")
            return
        with self._lock:
            self._child = child
            if self._is_ended:
                child.kill()
        sender = threading.Thread(target=self._send, args=(child,), name="relevo suspects, orders", daemon=True)
        sender.start()
        try:
            while True:
                self._receive(child)
        except Gone:
            pass
        self._prepared.put(None)
        self._inbox.put(None)
        sender.join()
        with self._lock:
            how, was_ended = child.bury(), self._is_ended
            self._is_ended = True
        if child.is_ready or was_ended:
            self._post(lambda: self._owner.gone(self, how, was_ended))
        else:
            self._fail(f"the process for it {how} before it was ready; its standard error says why")

    def _receive(self, child: Child) -> None:
        match child.receive():
            case Output(number, data):
                if (run := self._runs.get(number)) is not None:
                    run.capture.write_bytes(data)
            case Progressed(number, fraction, message):
                if (run := self._runs.get(number)) is not None:
                    run.context._progress = (fraction, message)
            case Answered(number, answer):
                if (run := self._runs.get(number)) is not None:
                    self._end_run(ended_with(run, answer))
            case answer:
                self._prepared.put(answer)

    # in the sending thread
    def _send(self, child: Child) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, PARENTS_SIGNALS)
        try:
            self._answer()
            child.is_ready = True
            while (message := self._inbox.get()) is not None:
                if isinstance(message, int):
                    self._order(child, message)
                elif message.number in self._begun:
                    child.send(message)
            if self._is_ended and child.has_lifespan:
                child.dismiss()
                child.kill()
        except Gone:
            pass  # the other thread notices, too
        except queue.Empty:
            log.error("a process for suspects did not answer within %g s; was an import waiting?", START_PATIENCE)
            child.kill()

    def _order(self, child: Child, number: int) -> None:
        run = self._runs.get(number)
        if run is None:
            return
        function = function_of(run)
        if isinstance(function, RemoteFailure):
            self._end_run((run, None, function))
            return
        self._begun.add(number)  # an import may kill the process, too
        if function not in child.knows:
            child.send(function)
            answer = self._answer()
            if isinstance(answer, Failed):
                self._end_run((run, None, remote_failure(answer)))
                return
            child.has_lifespan = isinstance(answer, Ready) and answer.has_lifespan
            child.knows.add(function)
        if run.settled:  # cancelled or handed back in the meantime
            self._end_run((run, None, ProcessDied("it was stopped before it began")))
            return
        try:
            if run.is_too_late:
                raise DeadlinePassed
            self._on_start(run)
        except BaseException as error:  # noqa: BLE001  # of `on_start`
            self._end_run((run, None, error))
            return
        child.send(order_of(run, function, number))
        if run.context._pause_asked:  # before it was sent to the child
            child.send(Pause(number))

    def _answer(self) -> Answer:
        answer = self._prepared.get(timeout=START_PATIENCE)
        if answer is None:
            raise Gone
        return answer

    def _end_run(self, ended: Ended) -> None:
        self._post(lambda: self._owner.ended(self, ended))

    def _fail(self, text: str) -> None:
        self._is_ended = True
        for run in list(self._runs.values()):
            self._end_run((run, None, failure(run, text)))
        self._post(lambda: self._owner.gone(self, text, True))

    def _post(self, act: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(act)
        except RuntimeError:  # the loop is closed: the worker has ended
            self.end()
