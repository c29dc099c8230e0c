"""A worker: claims jobs from queues, runs them, settles them.

It puts the parts together: a `Consumer` per queue claims and settles, `Bell`s wait for wake-ups, the `Intake` decides
what may run, the `Runner` runs it, `TimeLimits` enforces time limits, and the `LeaseRenewer` renews leases.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar, cast, get_args

from relevo.bus.bus import Bus
from relevo.engine.duty import Duty, repeat
from relevo.engine.engine import Engine, HasEngine
from relevo.engine.ids import Ids
from relevo.engine.lifespan import Lifespan
from relevo.engine.offers_store import Known
from relevo.engine.workers import WorkerInfo
from relevo.errors import ConfigurationError, FormatError, OptionError, StoreError, UnfitServer, UntrustedDirectory
from relevo.store.aio import AsyncDriver
from relevo.text.names import is_bus_name
from relevo.text.slots import queues_with_slots
from relevo.version import __version__
from relevo.worker import capture
from relevo.worker import kill_points as faults
from relevo.worker.bell import Bell
from relevo.worker.blocked_waits import BlockedWaits
from relevo.worker.capacity import Capacity, DividedCapacity
from relevo.worker.consumer import Consumer
from relevo.worker.divided_runner import DividedRunner
from relevo.worker.division import checked_concurrency, divided
from relevo.worker.imports import import_tasks
from relevo.worker.intake import Intake
from relevo.worker.job_log import LogJobs
from relevo.worker.lease_renewer import LeaseRenewer
from relevo.worker.ledger import Ledger
from relevo.worker.missing_tasks import MissingTasks
from relevo.worker.presence import Presence, Registration
from relevo.worker.runner import Runner, Sizes
from relevo.worker.server_clock import StepLog
from relevo.worker.slots_duty import SlotsDuty
from relevo.worker.time_limits import NotesDuty, TimeLimits
from relevo.worker.timings import TimingsDuty

log = logging.getLogger("relevo.worker")

P = TypeVar("P")


class Worker:
    """Runs an app's jobs until it is stopped.

    >>> await Worker(app, queues=["default", "mail"]).run()  # doctest: +SKIP
    """

    def __init__(
        self,
        app: HasEngine,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int | None = None,
        threads: int | None = None,
        burst: bool = False,
        max_jobs: int | None = None,
        ledger: Ledger | None = None,
        log_jobs: LogJobs = "none",
    ) -> None:
        engine = getattr(app, "engine", None)
        if not isinstance(engine, Engine):
            raise OptionError(f"a worker needs an app, such as Worker(app), found {app!r:.80}")
        if queues is not None and (isinstance(queues, str) or not isinstance(queues, Sequence)):
            raise OptionError(f"queues: a list of names is needed, such as ['default'], found {queues!r:.80}")
        settings = engine.settings
        self.engine = engine
        self.id = Ids()()
        import_tasks(engine)
        given = queues_with_slots("queues", queues or settings.queues or self._all_queues())
        for name in given:
            engine.keys_of(name)  # refuses a name that cannot be one
        self.queues = tuple(given)
        if len(self.queues) > 255:
            raise OptionError(f"a worker serves at most 255 queues, found {len(self.queues)}")
        if concurrency is not None:
            _positive("concurrency", concurrency)
        self.concurrency = checked_concurrency(given, concurrency, settings.concurrency)
        #: of each queue: the slots given to it; None: it shares the others
        self._given = tuple(given.values())
        self.burst = burst
        self.intake = Intake(engine, self.id)
        if any(map(is_bus_name, self.queues)):
            engine.part(Bus).worker = self.id  # what is sent from here may want to come back here
        self._parts: dict[type[Any], Any] = {}
        self.consumers: list[Consumer] = []
        self.step_log = StepLog()
        self.is_stopping = False
        #: and nothing that was handed to us is on its way any more: consumers may end
        self.is_drained = False
        #: stopped because it should start anew: too many jobs, too much memory, threads that hang
        self.wants_recycling = False
        self._given_up: ConfigurationError | None = None
        #: queues that have no free slot although jobs wait -> since when, by the server's clock
        self.full: dict[str, int] = {}
        #: settlements that came too late
        self.refused = 0
        self._max_jobs = None if max_jobs is None else _positive("max_jobs", max_jobs)
        self._ledger = ledger
        if log_jobs not in get_args(LogJobs):
            raise OptionError(f"log_jobs: 'none', 'some' or 'all' is needed, found {log_jobs!r:.80}")
        self._log_jobs: LogJobs = log_jobs
        self.started_ms = int(time.time() * 1000)
        self._stop = asyncio.Event()
        self._stop_fast = asyncio.Event()
        self._runner: Runner | None = None
        self._capacity: Capacity | None = None
        #: it was made known before its first claim
        self.is_registered = False
        #: its repeated jobs: its own, those of the features, those added
        self.duties: list[Duty[Any]] = []
        self._added: list[Duty[Any]] = []
        self._bells: list[Bell] = []
        self.threads = _positive("threads", settings.threads if threads is None else threads)
        # With nothing but plain functions, what threads cannot start would only be kept from other workers.
        known = [*engine.tasks.values(), *engine.part(Bus).handlers()]
        if engine.middleware:
            for task in known:
                _ = task.attempt  # refuses middleware that awaits around a plain function
        #: How many tasks and handlers it knows; None: any function of the allowed modules.
        self._known = None if settings.allow else len(known)
        some_async = any(task.is_async for task in known) or bool(settings.allow) or not known
        self._slots = self.concurrency if some_async else min(self.concurrency, self.threads)

    @property
    def queues_as_given(self) -> list[str]:
        """Its queues as `-Q` takes them: `mail:20` has 20 slots of its own."""
        pairs = zip(self.queues, self._given, strict=True)
        return [queue if slots is None else f"{queue}:{slots}" for queue, slots in pairs]

    def _all_queues(self) -> list[str]:
        of_tasks = [task.options.queue for task in self.engine.tasks.values()]
        return [self.engine.settings.queue, *of_tasks, *self.engine.part(Bus).queues(self.id)]

    @property
    def runner(self) -> Runner:
        """The jobs in hand."""
        assert self._runner is not None, "the worker is not running"
        return self._runner

    @property
    def capacity(self) -> Capacity:
        """How many more jobs it may claim."""
        assert self._capacity is not None, "the worker is not running"
        return self._capacity

    @property
    def in_hand(self) -> int:
        """Jobs claimed whose end the server does not know yet."""
        return self.capacity.in_hand

    @property
    def done(self) -> int:
        """Jobs that went well."""
        return self._runner.done if self._runner else 0

    @property
    def failed(self) -> int:
        """Attempts that did not."""
        return self._runner.failed if self._runner else 0

    # life
    def stop(self, *, fast: bool = False) -> None:
        """Take no more jobs; finish or hand back what runs. Again, or `fast`: hand back at once."""
        if fast or self._stop.is_set():
            self._stop_fast.set()
        self._stop.set()

    def start_anew(self) -> None:
        """Stop, and ask the supervisor for a fresh process."""
        if not self.is_stopping:
            self.wants_recycling = True
            self.stop()

    def give_up(self, error: ConfigurationError) -> None:
        """Stop, hand back what is in hand, and let `run` raise this: another start would not help."""
        self._given_up = error
        self.stop()

    async def run(self) -> None:
        """Work until stopped (in burst mode: until nothing is left to do)."""
        if self._known == 0:
            MissingTasks(self.engine).warn_of_none()
        driver = self.engine.client.driver()
        await self._check_server(driver)
        async with self.engine.part(Lifespan).entered(self.id):
            await self._work(driver)
        if self._given_up is not None:
            raise self._given_up

    async def _work(self, driver: AsyncDriver) -> None:
        renewer = self._assemble(driver)
        with capture.Installed(forward=True, marked=self._log_jobs != "none"):
            await self._register()
            renewer.start()
            consumers = [self._guard(consumer.run, f"consumer {consumer.queue}") for consumer in self.consumers]
            beside = [self._guard(bell.run, "bell") for bell in self._bells]
            beside += [self._guard(partial(self._repeat, duty), duty.name) for duty in self.duties]
            try:
                await self._stop.wait()
                await self._wind_down(consumers)
            finally:
                renewer.stop()
                for task in (*consumers, *beside):
                    task.cancel()
                await asyncio.gather(*consumers, *beside, return_exceptions=True)
                self.runner.close()
                for duty in reversed(self.duties):
                    with contextlib.suppress(StoreError):
                        await duty.close()

    def _assemble(self, driver: AsyncDriver) -> LeaseRenewer:
        """Make the parts, none of which runs yet."""
        engine = self.engine
        time_limits = self._make_runner()
        runner = self.runner
        self.consumers = [Consumer(self, queue, number, driver) for number, queue in enumerate(self.queues)]
        self.capacity.consumers = self.consumers
        self._bells = self._make_bells(driver)
        # The first ones make the worker known; they are closed last.
        self.duties = [Registration(self), Presence(self), time_limits]
        self.duties += [NotesDuty(runner, self.consumers), TimingsDuty(self.consumers, driver), SlotsDuty(self)]
        self.duties += [BlockedWaits(self), *self._added]
        for give in engine.duties:
            self.duties += give(self)
        return LeaseRenewer(engine, runner, self.consumers, time_limits)

    def _make_runner(self) -> TimeLimits:
        """Make what runs the jobs, and what says how many. One queue has all slots, and pays for no division."""
        sizes: Sizes = {
            "concurrency": self.concurrency,
            "threads": self.threads,
            "processes": self.engine.settings.pool or os.cpu_count() or 1,
            "on_settled": self._on_settled,
            "log_jobs": self._log_jobs,
        }
        if len(self.queues) == 1:
            runner = self._runner = Runner(self.engine, **sizes)
            time_limits = TimeLimits(runner, self._on_hanging)
            self._capacity = Capacity(self._slots, runner, lambda: time_limits.rate)
        else:
            divided_runner = DividedRunner(self.engine, queues=self.queues, given=self._given, **sizes)
            runner = self._runner = divided_runner
            time_limits = TimeLimits(runner, self._on_hanging)
            division = divided(self._slots, self._given, of=self.concurrency)
            self._capacity = DividedCapacity(division, divided_runner)
        runner.ledger = self._ledger
        if self._max_jobs is None:
            runner.on_settled = self._capacity.wake_hungry
        return time_limits

    # duties
    def add_duty(self, duty: Duty[Any]) -> None:
        """Repeat this as well, once it runs."""
        self._added.append(duty)

    async def _register(self) -> None:
        """Make the worker known before it claims its first job: jobs may be waiting for its offers."""
        registrations = [duty for duty in self.duties if duty.is_registration]
        try:
            for duty in registrations:
                await duty.run_once()
            self.is_registered = True
        except StoreError as error:
            log.warning("the server is away at the start: %s", error)  # the consumers go on trying
            for duty in registrations:
                duty.hurry()

    def register_again(self) -> None:
        """Make the worker known again now: the server may have lost its entries, or its clock was set."""
        for duty in self.duties:
            if duty.is_registration:
                duty.hurry()

    async def _repeat(self, duty: Duty[Any]) -> None:
        try:
            await repeat(duty)
        except FormatError as error:
            self.give_up(error)

    def part(self, kind: type[P]) -> P:
        """The state of a feature for this worker, such as `worker.part(Aftermath)`; made when first asked for."""
        found = self._parts.get(kind)
        if found is None:
            found = self._parts.setdefault(kind, cast("Callable[[Worker], P]", kind)(self))
        return cast("P", found)

    def known(self, queue: str) -> Known:
        """The targets that it can run for a queue."""
        offer = self.intake.offer(queue)
        return Known(offer.build, offer.text)

    def about(self) -> WorkerInfo:
        """Its record for the list of workers, with its counters now."""
        return WorkerInfo(
            id=self.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=self.queues,
            concurrency=self.concurrency,
            started_ms=self.started_ms,
            running=self.in_hand,
            done=self.done,
            failed=self.failed,
            version=__version__,
            full=self.full,
            tasks=self._known,
        )

    def _make_bells(self, driver: AsyncDriver) -> list[Bell]:
        if self.engine.client.source.is_cluster:  # keys of different slots cannot be read together
            return [Bell(driver, self.id, [consumer], self._on_bell_open) for consumer in self.consumers]
        return [Bell(driver, self.id, self.consumers, self._on_bell_open)]

    def _on_bell_open(self, was_open: bool) -> None:
        if was_open:  # the server may be another one, without our entries
            self.engine.forget_lists()
        self.register_again()

    @staticmethod
    def _guard(duty: Callable[[], Any], name: str) -> asyncio.Task[None]:
        async def go_on() -> None:
            while True:
                try:
                    await duty()
                    return
                except StoreError as error:  # a fault of the server is one line, wherever it shows
                    log.warning("%s: %s; it starts anew", name, error)
                    await asyncio.sleep(1)
                except (Exception, asyncio.CancelledError):
                    task = asyncio.current_task()
                    if task is not None and task.cancelling():  # by us; else it comes from what the duty waited for
                        raise
                    log.exception("%s failed; it starts anew", name)
                    await asyncio.sleep(1)

        return asyncio.create_task(go_on(), name=f"relevo {name}")

    async def _check_server(self, driver: AsyncDriver) -> None:
        """Refuse a server that is not to be used; one that is away is asked by the first turn."""
        try:
            for queue in self.queues:
                await driver.check(self.engine.keys_of(queue).key("ready"))
        except (UnfitServer, UntrustedDirectory):
            raise
        except (StoreError, TimeoutError) as error:
            log.debug("the server could not be checked: %s", error)

    async def _wind_down(self, consumers: list[asyncio.Task[None]]) -> None:
        """Leave the lists, finish or hand back what is in hand, and tell what became of it."""
        runner, grace = self.runner, self.engine.settings.grace
        self.is_stopping = runner.is_closing = True
        self.capacity.close()
        runner.ask_to_pause()
        for duty in reversed(self.duties):
            with contextlib.suppress(StoreError):
                await duty.withdraw()
        if faults.ACTIVE:
            faults.at("stopping")
        for consumer in self.consumers:
            try:
                await consumer.leave()
            except StoreError as error:
                log.warning("%s: could not sign off: %s", consumer.queue, error)
        await asyncio.gather(*(bell.drain() for bell in self._bells))
        self.is_drained = True
        for run in [run for run in runner.runs.values() if not run.started]:
            runner.give_back(run)
        if runner.runs:
            log.info("stopping: %d jobs have %g s to finish", len(runner.runs), grace)
        ended: asyncio.Future[Any] = asyncio.gather(*consumers)
        fast: asyncio.Future[Any] = asyncio.create_task(self._stop_fast.wait())
        for consumer in self.consumers:
            consumer.settle_soon()
        await asyncio.wait({ended, fast}, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        if runner.runs:
            log.warning("stopping: %d jobs are handed back unfinished", len(runner.runs))
            for run in list(runner.runs.values()):
                runner.interrupt(run, "shutdown")
            await asyncio.wait({ended}, timeout=1.0)
            for run in list(runner.runs.values()):
                runner.give_back(run)
        with contextlib.suppress(asyncio.TimeoutError, asyncio.CancelledError):
            await asyncio.wait_for(ended, 5.0)  # until the server knows it all
        fast.cancel()

    # called by the parts
    def consumer_is_quiet(self) -> None:
        """A consumer has nothing to claim or settle. In burst mode, when all are quiet, the work is done."""
        if self.burst and not self.in_hand and all(consumer.is_quiet for consumer in self.consumers):
            self.stop()

    def _on_settled(self) -> None:
        self.capacity.wake_hungry()
        if self._max_jobs is not None and self.done + self.failed >= self._max_jobs:
            self.start_anew()

    def _on_hanging(self) -> None:
        log.error("too many jobs hang; the worker starts anew")
        self.start_anew()


def _positive(what: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise OptionError(f"{what}: a whole number of at least 1 is needed, found {value!r}")
    return value
