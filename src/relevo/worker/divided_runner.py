"""The runner of a worker that serves several queues: runs of one queue leave places to the others.

What a worker claims is divided (`worker/capacity.py`), and so are the places where it runs: plain functions of one
queue could hold every thread while slots are free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Unpack

from relevo.engine.engine import Engine
from relevo.worker.division import divided
from relevo.worker.executors.executor import Executor
from relevo.worker.offers import executors_of
from relevo.worker.run import Run
from relevo.worker.runner import Runner, Sizes


class Count:
    """Of each queue: jobs in hand, jobs that ended, and runs that have a place."""

    def __init__(self, queues: int) -> None:
        self.in_hand = [0] * queues
        self.ended = [0] * queues
        self.placed = [0] * queues


class _Pool:
    """The places of one executor."""

    def __init__(self, size: int, given: Sequence[int | None], *, of: int, least: int) -> None:
        self._size, self._given, self._of, self._least = size, given, of, least
        #: queues whose jobs run here; for the others nothing is kept
        self.users: set[int] = set()
        self._taken = [0] * len(given)
        self._total = 0
        #: with fewer taken places than these, any queue without a number may have one
        self._plenty = 0
        #: runs without a place, by queue
        self.waiting: dict[int, deque[Run]] = {}

    def add_users(self, numbers: Iterable[int]) -> None:
        """Keep places for these queues, too."""
        if not self.users.issuperset(numbers):
            self.users.update(numbers)
            given = [slots if number in self.users else 0 for number, slots in enumerate(self._given)]
            self._division = divided(self._size, given, of=self._of, least=self._least)
            self._plenty = self._size - sum(self._division.own)

    def is_free(self, number: int) -> bool:
        """Whether a run of this queue may have a place."""
        if self._total >= self._size:
            return False
        if self._total < self._plenty and self._given[number] is None:
            return True
        return self._division.free(number, self._taken) > 0

    def take(self, number: int) -> None:
        """A run of this queue has a place."""
        self._taken[number] += 1
        self._total += 1

    def leave(self, number: int) -> None:
        """It leaves its place."""
        self._taken[number] -= 1
        self._total -= 1


class DividedRunner(Runner):
    """Runs wait here for a place that is not kept for another queue, then they are submitted to their executor."""

    def __init__(
        self, engine: Engine, *, queues: Sequence[str], given: Sequence[int | None], **sizes: Unpack[Sizes]
    ) -> None:
        super().__init__(engine, **sizes)
        self.count = Count(len(queues))
        self._given = given
        self._sizes = {"loop": sizes["concurrency"], "thread": sizes["threads"], "process": sizes["processes"]}
        self._users: dict[str, set[int]] = {}
        for number, queue in enumerate(queues):
            for executor in executors_of(engine, queue):
                self._users.setdefault(executor, set()).add(number)
        self._pools: dict[str, _Pool] = {}
        #: the pool in which a run has its place
        self._places: dict[Run, _Pool] = {}

    def accept(self, run: Run) -> None:
        """Start it as soon as there is a place for it."""
        self.count.in_hand[run.origin.number] += 1
        super().accept(run)

    def _place(self, run: Run) -> None:
        executor = run.executor = self._executors.of(run)
        if self._executors.is_quarantine(executor):  # few, and apart from the others
            executor.submit(run)
            return
        number, pool = run.origin.number, self._pools.get(run.task.executor) or self._pool(run.task.executor)
        if number not in pool.users:
            pool.add_users((number,))
        if number not in pool.waiting and self._may_start(number, pool):
            self._start(run, executor, pool)
        else:
            pool.waiting.setdefault(number, deque()).append(run)

    def waits_for_place(self, run: Run) -> bool:
        """Whether it was not submitted to its executor, because places are kept for other queues."""
        executor = run.executor
        return executor is not None and run not in self._places and not self._executors.is_quarantine(executor)

    def _pool(self, name: str) -> _Pool:
        # Half of two processes is too much to keep idle; the loop has the worker's own slots.
        least = 1 if name == "loop" else 0
        pool = self._pools[name] = _Pool(self._sizes[name], self._given, of=self._sizes["loop"], least=least)
        pool.add_users(self._users.get(name, ()))
        return pool

    def _may_start(self, number: int, pool: _Pool) -> bool:
        most = self._given[number]
        return (most is None or self.count.placed[number] < most) and pool.is_free(number)

    def _start(self, run: Run, executor: Executor, pool: _Pool) -> None:
        number = run.origin.number
        pool.take(number)
        self.count.placed[number] += 1
        self._places[run] = pool
        executor.submit(run)

    def _forget(self, run: Run) -> None:
        number = run.origin.number
        if not run.settled:
            self.count.in_hand[number] -= 1
            self.count.ended[number] += 1
        super()._forget(run)
        pool = self._places.pop(run, None)
        if pool is not None:
            pool.leave(number)
            self.count.placed[number] -= 1
            if pool.waiting:
                self._admit(pool)
            if self._given[number] is not None:  # it may start in another pool instead
                for other in self._pools.values():
                    self._admit(other)

    def _admit(self, pool: _Pool) -> None:
        """Give free places to runs that wait, in turns of their queues."""
        is_going = True
        while is_going:
            is_going = False
            for number in list(pool.waiting):
                is_going = self._admit_one(pool, number) or is_going

    def _admit_one(self, pool: _Pool, number: int) -> bool:
        waiting = pool.waiting[number]
        while waiting and waiting[0].settled:  # cancelled or handed back
            waiting.popleft()
        has_started = bool(waiting) and self._may_start(number, pool)
        if has_started:
            run = waiting.popleft()
            assert run.executor is not None
            self._start(run, run.executor, pool)
        if not waiting or has_started:  # the others are next
            del pool.waiting[number]
            if waiting:
                pool.waiting[number] = waiting
        return has_started
