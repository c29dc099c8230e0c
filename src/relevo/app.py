"""Relevo: the object that puts the parts together."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, overload

import msgspec

from relevo.audit.trail import Audit
from relevo.bus.bus import Bus
from relevo.bus.service import Service
from relevo.bus.span import Span
from relevo.bus.tracing import tracing
from relevo.dead.letters import DeadLetters
from relevo.engine import finding
from relevo.engine.client import Client
from relevo.engine.handle import Job
from relevo.engine.ids import Ids
from relevo.engine.job import Envelope
from relevo.engine.key_format import agreeing
from relevo.engine.options import ONE_JOB_ONLY, Options, changed
from relevo.engine.outbox import relay
from relevo.engine.outcome import Policy
from relevo.engine.pauses import Pause, Until
from relevo.engine.settle import Terms
from relevo.engine.targets import importable, is_task_name, module_of, own_name
from relevo.engine.task import Task
from relevo.errors import ConfigurationError, OptionError, StoreError, TargetError
from relevo.health.gathering import cached as cached_health
from relevo.health.gathering import gathering, keeping
from relevo.health.status import Health
from relevo.limits.pauses_in_app import all_pauses, pausing, resuming
from relevo.pools.pool import Pool, StillThere
from relevo.queues import store as queues
from relevo.queues.lists import own_queues
from relevo.queues.queue import Queue
from relevo.schedules.firing import described, registering, registering_all
from relevo.schedules.handle import Schedule, Schedules
from relevo.schedules.schedule import TIMES
from relevo.schedules.schedule import Schedule as Timed
from relevo.settings import Settings, data_directory, load
from relevo.signing import Keyring, Signer
from relevo.store.keys import AppKeys, QueueKeys, app_keys, bus_keys
from relevo.store.plan import Call, Plan
from relevo.store.server_time import ServerTime
from relevo.telemetry import telemetry
from relevo.text.durations import Duration
from relevo.text.names import is_bus_name, is_pool_name, known_as, place_of, queue_address, task_queue
from relevo.text.nearest import did_you_mean
from relevo.upkeep.conversations import Cleaned, Made, Tally, cleaning, listing, tallies
from relevo.upkeep.purge import aperformed, performed, purging
from relevo.upkeep.report import PurgeReport
from relevo.upkeep.sweeping import SweepReport, sweeping
from relevo.workflows.steps import Step
from relevo.workflows.storing import GATHER
from relevo.workflows.workflow import Workflow

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

#: A queue is put on the list of queues again after so many seconds of use.
LIST_AGAIN = 3600.0
#: What `_bind` sets.
_BOUND = (
    "settings", "keys", "bus_keys", "own_keys", "lease_ms", "keyring", "_server_time", "_clock_key", "_queue_keys",
    "_listed", "_client",
)  # fmt: skip


class Relevo:
    """An app: its tasks, its queues, its server.

    >>> app = Relevo("shop")           # url= or RELEVO_URL or REDIS_URL, else the embedded server
    >>> @app.task(retries=3)
    ... def charge(invoice: int, *, cents: int) -> str:
    ...     return f"charged {cents}"

    Nothing is opened or started before the first call that needs the server.
    """

    def __init__(self, name: str, **settings: Any) -> None:
        if not name or not isinstance(name, str):
            raise OptionError(f'an app needs a name of its own, such as Relevo("shop"), found {name!r}')
        self.name = name
        clock_key = settings.pop("_clock_key", "")
        self.tasks: dict[str, Task[..., Any]] = {}
        #: schedules that decorators name
        self.timetable: dict[str, Timed] = {}
        self.new_id = Ids()
        self._lock = threading.Lock()
        self._bind(load(arguments=settings), clock_key)
        #: makes spans for OpenTelemetry; None: nobody wants them
        self.telemetry = telemetry(self.settings.otel)
        self.keys_of(self.settings.queue)  # refuses a name that cannot be one
        #: of tasks that say nothing else
        self.default_options = Options(
            queue=self.settings.queue,
            timeout=self.settings.timeout,
            retries=self.settings.retries,
            result_ttl=self.settings.result_ttl,
            failure_ttl=self.settings.failure_ttl,
            max_crashes=self.settings.max_crashes,
        )
        self.bus = Bus(self)
        #: pools of which this program said something
        self.declared_pools: dict[str, Pool] = {}
        #: tasks that every app has
        self.built_in: dict[str, Task[..., Any]] = {GATHER: Task(self, _gather, GATHER, self.default_options)}

    def _bind(self, settings: Settings, clock_key: str) -> None:
        """Everything that depends on which server and which names are used."""
        self.settings = settings
        self.keys = AppKeys(settings.prefix, settings.env, self.name)
        #: what all services under this prefix and env share
        self.bus_keys = bus_keys(settings.prefix, settings.env, clock_key=clock_key)
        #: what concerns the app as a whole and is written by scripts
        self.own_keys = app_keys(settings.prefix, settings.env, self.name, clock_key=clock_key)
        self.lease_ms = round(settings.lease * 1000)
        #: what jobs, messages and results are signed with
        self.keyring = Keyring(settings.signing_keys)
        self._server_time = ServerTime()
        self._clock_key = clock_key
        self._queue_keys: dict[str, QueueKeys] = {}
        self._listed: dict[str, float] = {}
        self._client: Client | None = None

    @contextmanager
    def rebound(self, *, clock_key: str = "", **settings: Any) -> Iterator[None]:
        """Another server or other names for a while: `with app.rebound(url=…, prefix=…):`. Made for tests.

        Tasks, queues and jobs made before follow, because they ask the app. Nobody else may use it meanwhile.
        """
        before = {name: getattr(self, name) for name in _BOUND}
        self._bind(msgspec.structs.replace(self.settings, **settings), clock_key)
        try:
            yield
        finally:
            self.close()
            for name, value in before.items():
                setattr(self, name, value)

    def __repr__(self) -> str:
        return f"<Relevo {self.name} in {self.settings.env}, {len(self.tasks)} tasks>"

    # tasks
    @overload
    def task(self, func: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, func: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, func: None = None, /, *, name: str | None = None, **options: Any) -> _Decorator: ...

    def task(self, func: Any = None, /, *, name: str | None = None, **options: Any) -> Any:
        """Register a function as a task: `@app.task` or `@app.task(retries=5, timeout="30s", …)`.

        Its name is `module.function` unless `name` says otherwise; workers find it by that name, so it must be the
        same where jobs are made and where they run. With `cron="30 2 * * *", tz="Europe/Madrid"` or `every="10s"`
        workers run it by the clock; see `schedule` for what else can be said about that.
        """
        if func is not None:
            return self._register(func, name, options)
        return lambda function: self._register(function, name, options)

    def _register(self, func: Callable[..., Any], name: str | None, options: dict[str, Any]) -> Task[..., Any]:
        if not callable(func):
            raise TargetError(f"@app.task needs a function, found {func!r:.80}")
        if isinstance(func, Task):
            raise TargetError(f"{func.target} is a task already; change its options with .using(…)")
        target = f"{module_of(func)}.{own_name(func)}" if name is None else name
        if not is_task_name(target):
            raise TargetError(f"a task's name is text without colons and spaces, found {target!r:.80}")
        times = {option: options.pop(option) for option in TIMES & options.keys()}
        before = self.tasks.get(target)
        if before is not None and getattr(before.func, "__qualname__", "") != getattr(func, "__qualname__", ""):
            raise ConfigurationError(f"two tasks are called {target!r}: give one of them another name=")
        task: Task[..., Any] = Task(self, func, target, changed(self.default_options, options, refuse=ONE_JOB_ONLY))
        if times:
            self.timetable[target] = described(self, target, task, times, "code")
        self.tasks[target] = task
        return task

    @overload
    def function(self, func: Callable[P, Awaitable[R]], *, trusted: bool = False) -> Task[P, R]: ...
    @overload
    def function(self, func: Callable[P, R], *, trusted: bool = False) -> Task[P, R]: ...

    def function(self, func: Callable[..., Any], *, trusted: bool = False) -> Task[..., Any]:
        """A plain function as a task, found by workers through its import path.

        Its module must be one the app allows (`allow=["shop.jobs"]`, which includes what is below it): a worker
        runs nothing else, whatever a forged job may name. With `trusted` this process does not ask; workers do.
        """
        if isinstance(func, Task):
            return self._as_task(func)
        module, name = importable(func)
        if not trusted and not self.allows(module):
            raise TargetError(
                f"{module}.{name} is not in a module this app allows; "
                f"decorate it with @app.task, or add {module!r} to the setting `allow`"
            )
        return Task(self, func, f"{module}:{name}", self.default_options)

    def allows(self, module: str) -> bool:
        """Whether plain functions of a module may be jobs."""
        return any(module == one or module.startswith(one + ".") for one in self.settings.allow)

    @overload
    def enqueue(self, func: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Job[R]: ...
    @overload
    def enqueue(self, func: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> Job[R]: ...
    @overload
    def enqueue(self, func: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Job[R]: ...

    def enqueue(self, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Job[Any]:
        """Put a call of a task, or of a plain function of an allowed module, on its queue."""
        return self._as_task(func).enqueue(*args, **kwargs)

    @overload
    async def aenqueue(self, func: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Job[R]: ...
    @overload
    async def aenqueue(self, func: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> Job[R]: ...
    @overload
    async def aenqueue(self, func: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Job[R]: ...

    async def aenqueue(self, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Job[Any]:
        """`enqueue` for async code."""
        return await self._as_task(func).aenqueue(*args, **kwargs)

    def _as_task(self, func: Callable[..., Any]) -> Task[..., Any]:
        if isinstance(func, Task):
            if func.app is not self:
                raise TargetError(f"{func.target} is a task of the app {func.app.name!r}: enqueue it there")
            return func
        registered = next((task for task in self.tasks.values() if task.func is func), None)
        return self.function(func) if registered is None else registered

    # the bus
    def service(
        self, name: str, *, context: str | Sequence[str] | None = None, keep_events: Duration | None = None
    ) -> Service:
        """A service of the bus, to serve its actions or to send messages as it: `app.service("embedding")`.

        `context` is a queue of its own beside the service's others, for a tenant or a session that must be apart.
        `keep_events`: how long what it publishes can be heard again by those who `replay` it.
        """
        return Service(self, name, context, keep_events)

    def made_for(self, task: str) -> list[Made]:
        """What was made on behalf of a task (`send(…, task="task_7")`) and can still be seen, oldest first."""
        return self.run(listing(self, task))

    async def amade_for(self, task: str) -> list[Made]:
        """`made_for` for async code."""
        return await self.arun(listing(self, task))

    def cleanup(self, task: str, *, dead: bool = False, dry_run: bool = False) -> Cleaned:
        """Remove what is left of a task: records, results and logs. What is in use stays, and so do dead letters.

        With `dead`, those go, too. A callback that was handled does this by itself, and everything has a time limit.
        """
        return self.run(cleaning(self, task, dead=dead, dry_run=dry_run))

    async def acleanup(self, task: str, *, dead: bool = False, dry_run: bool = False) -> Cleaned:
        """`cleanup` for async code."""
        return await self.arun(cleaning(self, task, dead=dead, dry_run=dry_run))

    def sweep(self, *, dry_run: bool = True) -> SweepReport:
        """Find what nobody serves or uses any more, and with `dry_run=False` remove it. Workers do so by themselves."""
        return self.run(sweeping(self, dry_run=dry_run))

    async def asweep(self, *, dry_run: bool = True) -> SweepReport:
        """`sweep` for async code."""
        return await self.arun(sweeping(self, dry_run=dry_run))

    def purge(
        self, *, dry_run: bool = True, queue: str | None = None, watch: Callable[[int], None] | None = None
    ) -> PurgeReport:
        """Find what is in its state for too long (setting `purge_ages`), and with `dry_run=False` end or remove it.

        Of all queues and pools of this app, or of one. A dry run gives exactly the list of what would be done. `watch`
        is called with how many were ended or removed so far.
        """
        return performed(self, purging(self, dry_run=dry_run, queue=queue, watch=watch))

    async def apurge(
        self, *, dry_run: bool = True, queue: str | None = None, watch: Callable[[int], None] | None = None
    ) -> PurgeReport:
        """`purge` for async code."""
        return await aperformed(self, purging(self, dry_run=dry_run, queue=queue, watch=watch))

    def tallies(self) -> dict[str, Tally]:
        """How many actions, callbacks and notifications came and went: created, done, dead, expired, cleaned, swept."""
        return self.run(tallies(self))

    async def atallies(self) -> dict[str, Tally]:
        """`tallies` for async code."""
        return await self.arun(tallies(self))

    def trace(self, id: str) -> list[Span]:
        """The way of an operation through all services, by its correlation id, task, or the id of a message."""
        return self.run(tracing(self, id))

    async def atrace(self, id: str) -> list[Span]:
        """`trace` for async code."""
        return await self.arun(tracing(self, id))

    # jobs and queues
    def queue(self, name: str | None = None) -> Queue:
        """A queue by its name."""
        return Queue(self, self.settings.queue if name is None else name)

    def queues(self) -> list[str]:
        """Names of the app's queues in use: its own, and those of the bus that it serves."""
        return self.run(self.listed_queues())

    async def aqueues(self) -> list[str]:
        """`queues` for async code."""
        return await self.arun(self.listed_queues())

    def pause(
        self,
        *,
        task: str | Task[..., Any] | None = None,
        tenant: str | None = None,
        reason: str = "",
        by: str = "",
        until: Until = None,
    ) -> list[str]:
        """Start no more jobs of a task, or of a tenant, in any queue of the app: where that changed anything.

        The options are those of `Queue.pause`, which pauses in one queue, or all of it.
        """
        return self.run(pausing(self, tenant, task, reason, by, until))

    async def apause(
        self,
        *,
        task: str | Task[..., Any] | None = None,
        tenant: str | None = None,
        reason: str = "",
        by: str = "",
        until: Until = None,
    ) -> list[str]:
        """`pause` for async code."""
        return await self.arun(pausing(self, tenant, task, reason, by, until))

    def resume(self, *, task: str | Task[..., Any] | None = None, tenant: str | None = None) -> list[str]:
        """Start jobs of a task or a tenant again, in all queues of the app: where that changed something."""
        return self.run(resuming(self, tenant, task))

    async def aresume(self, *, task: str | Task[..., Any] | None = None, tenant: str | None = None) -> list[str]:
        """`resume` for async code."""
        return await self.arun(resuming(self, tenant, task))

    def pauses(self) -> list[Pause]:
        """What is paused in any queue, since when and until when, why and by whom; open breakers, too."""
        return self.run(all_pauses(self))

    async def apauses(self) -> list[Pause]:
        """`pauses` for async code."""
        return await self.arun(all_pauses(self))

    def listed_queues(self, only: str | None = None) -> Generator[Call[Any], Any, list[str]]:
        """The plan behind `queues`, for those who have more to ask. `only`: the one that is meant, in use or not."""
        return [only] if only is not None else (yield from own_queues(self))

    def can_be_queue(self, name: str) -> bool:
        """Strangers may have written anything on the list."""
        try:
            self.keys_of(name)
        except OptionError:
            return False
        return True

    def pool(
        self,
        name: str,
        *,
        states: Sequence[str] | None = None,
        still_there: StillThere | None = None,
        data_ttl: Duration | None = None,
    ) -> Pool:
        """A pool by its name: entities with metadata in named states, such as machines that are pending or ready.

        What is said here once counts wherever this app names the pool. `states`: no others are taken. `still_there`:
        asked by the purge, of what is in a state for too long, whether it still exists. `data_ttl`: how long what is
        known of an entity is kept once it left all states (default: `failure_ttl`).
        """
        if states is None and still_there is None and data_ttl is None:
            return self.declared_pools.get(name) or Pool(self, name)
        pool = self.declared_pools[name] = Pool(self, name, states, still_there, data_ttl)
        return pool

    def pools(self) -> list[str]:
        """Names of all pools in use."""
        return self.run(self.listed_pools())

    async def apools(self) -> list[str]:
        """`pools` for async code."""
        return await self.arun(self.listed_pools())

    def listed_pools(self) -> Generator[Call[Any], Any, list[str]]:
        """The plan behind `pools`."""
        names: list[str] = yield queues.listed(self.keys.pools)
        return sorted(names)

    def list_pool(self, name: str) -> Generator[Call[Any], Any, None]:
        """Put a pool on the list of pools, before its first entity."""
        listed = f"pool {name}"
        if not self.is_listed(listed):
            yield from agreeing(self.own_keys, name, on=self.keys.pools)
            self._listed[listed] = time.monotonic() + LIST_AGAIN

    def job(self, id: str, *, queue: str | None = None) -> Job[Any]:
        """A job by its id; without `queue`, the app's queues are asked, and then the others of the bus.

        UnknownJob if there is none.
        """
        return self.run(finding.job(self, id, queue))

    async def ajob(self, id: str, *, queue: str | None = None) -> Job[Any]:
        """`job` for async code."""
        return await self.arun(finding.job(self, id, queue))

    def workflow(self, id: str | None = None, *, queue: str | None = None) -> Workflow[Any]:
        """A workflow by its id; without one, that of the job that runs here. UnknownJob if there is none."""
        return finding.own_workflow(self) if id is None else self.run(finding.workflow(self, id, queue))

    async def aworkflow(self, id: str | None = None, *, queue: str | None = None) -> Workflow[Any]:
        """`workflow` for async code."""
        return finding.own_workflow(self) if id is None else await self.arun(finding.workflow(self, id, queue))

    # schedules
    @property
    def schedules(self) -> Schedules:
        """All schedules: decorated, from settings, and made at run time."""
        return Schedules(self)

    def schedule(
        self, name: str, call: Task[..., Any] | Step[Any, Any], /, *, run_now: bool = False, **options: Any
    ) -> Schedule:
        """Run a task, or a call such as `report.s(7)`, by the clock. Said again, it changes the schedule of that name.

        Give `cron` (five fields, or six with seconds in front, or "@daily") and the `tz` it is meant in, or `every`.
        `overlap`: "skip" a tick while the run before still goes on (the default), "queue" it behind that, or "allow"
        both. `missed`: ticks that no worker fired in time are made up for "once" (the default), "all" up to
        `missed_limit`, or "skip"ped. `jitter` spreads the starts. All other options are those of the task's jobs.
        It first runs at its next tick; with `run_now`, at once too when it is new.
        """
        return self.run(self._schedule(name, call, run_now, options))

    async def aschedule(
        self, name: str, call: Task[..., Any] | Step[Any, Any], /, *, run_now: bool = False, **options: Any
    ) -> Schedule:
        """`schedule` for async code."""
        return await self.arun(self._schedule(name, call, run_now, options))

    def _schedule(
        self, name: str, call: Any, run_now: bool, options: dict[str, Any]
    ) -> Generator[Call[Any], Any, Schedule]:
        said = yield from registering(self, described(self, name, call, options, "call"))
        handle = Schedule(self, name)
        if run_now and said == "new":
            yield from handle._run_now()
        return handle

    def register_schedules(self) -> Generator[Call[Any], Any, None]:
        """Register what decorators and settings name; workers do so when they start, and now and then."""
        return registering_all(self)

    @property
    def audit(self) -> Audit:
        """What operators did: `app.audit.list()`."""
        return Audit(self)

    @property
    def dead(self) -> DeadLetters:
        """The dead letters."""
        return DeadLetters(self)

    def health(self, *, cached: bool = False) -> Health:
        """Whether all is well, and why not: every queue, looked at now, at the same cost however many jobs there are.

        With `cached`, what a worker found last (setting `health`); `unknown`, if that is too long ago.
        """
        if cached:
            return self.run(cached_health(self))
        found = self.run(gathering(self))
        with suppress(StoreError):  # who may only look keeps nothing, and a replica takes nothing
            self.client.run(keeping(self, found), patience=0)
        return found

    async def ahealth(self, *, cached: bool = False) -> Health:
        """`health` for async code."""
        if cached:
            return await self.arun(cached_health(self))
        found = await self.arun(gathering(self))
        with suppress(StoreError):
            await self.client.arun(keeping(self, found), patience=0)
        return found

    def keys_of(self, queue: str) -> QueueKeys:
        """The keys of a queue."""
        if not isinstance(queue, str):
            raise OptionError(f"queue: the name of a queue is text, found {queue!r:.80}")
        keys = self._queue_keys.get(queue)
        if keys is None:
            address = queue_address(self.settings.prefix, self.settings.env, self.name, queue)
            place = place_of(address)
            signer = Signer(self.keyring, place) if self.keyring else None
            keys = QueueKeys(str(address), clock_key=self._clock_key, place=place, signer=signer)
            keys = self._queue_keys.setdefault(queue, keys)
        return keys

    def name_abroad(self, queue: str) -> str:
        """The queue's name for other apps on the same bus: `shop:actions:default`."""
        return queue if is_bus_name(queue) else str(task_queue("", "", self.name, queue))

    def now_ms(self) -> Generator[Call[Any], Any, int]:
        """The server's clock, under test with the shift that scripts see, too."""
        now_ms: int = yield queues.server_time()
        if self._clock_key:
            now_ms += int((yield Call([b"GET", self._clock_key.encode()])) or 0)
        return now_ms

    def about_now_ms(self) -> Generator[Call[Any], Any, int]:
        """The server's clock as it was a few seconds ago, carried on by this machine's: good enough for deadlines."""
        return self.now_ms() if self._clock_key else self._server_time.now_ms(self.now_ms)

    def is_listed(self, queue: str) -> bool:
        """Whether this process has put the queue on the list of queues of late."""
        return time.monotonic() < self._listed.get(queue, 0.0)

    def _note_listed(self, queue: str) -> None:
        self._listed[queue] = time.monotonic() + min(LIST_AGAIN, self.settings.orphan_age / 4)

    def list_queue(self, queue: str) -> Generator[Call[Any], Any, None]:
        """Put a queue on the list of queues. Before its first job, so that no job is where nobody looks."""
        if not self.is_listed(queue):
            is_ours = not is_bus_name(queue) or is_pool_name(queue)
            yield from agreeing(self.own_keys if is_ours else self.bus_keys, queue)
            self._note_listed(queue)

    def list_served(self, queue: str) -> Generator[Call[Any], Any, None]:
        """The same for a queue that a worker of this app serves: one of the bus goes on the app's own list, too."""
        yield from self.list_queue(queue)
        own = f"own {queue}"
        if is_bus_name(queue) and not self.is_listed(own):
            yield from agreeing(self.own_keys, known_as(queue))
            self._note_listed(own)

    def forget_lists(self) -> None:
        """The server may have lost its lists of queues and pools: put them there again when they are next used."""
        self._listed.clear()

    def relay(self, *queues: str) -> Generator[Call[Any], Any, int]:
        """Tell what depends on jobs of these queues of their ends: how many ended. Workers do so by themselves."""
        return relay(self.keys_of, queues, self.settings.dead_max)

    # how jobs end
    def failure_ms(self, envelope: Envelope | None) -> int:
        """How long the record of a job is kept that does not go well."""
        own = None if envelope is None else envelope.failure_ttl
        return max(1, round((self.settings.failure_ttl if own is None else own) * 1000))

    def terms_of(self, envelope: Envelope | None, queue: str) -> tuple[Policy, Terms]:
        """What a job's failure and end mean: its own options, else its task's, else the app's."""
        task = self.task_for(queue, envelope.target) if envelope else None
        options = task.options if task else self.default_options
        if envelope is None:
            envelope = _NOTHING
        policy = Policy(
            retries=options.retries if envelope.retries is None else envelope.retries,
            backoff=envelope.backoff or options.backoff,
            retry_on=options.retry_on,
            give_up_on=options.give_up_on,
            max_crashes=options.max_crashes,
            unknown_task_ttl=self.settings.unknown_task_ttl,
            breaker=options.breaker,
        )
        result_ttl = options.result_ttl if envelope.result_ttl is None else envelope.result_ttl
        failure_ttl = options.failure_ttl if envelope.failure_ttl is None else envelope.failure_ttl
        on_failure = envelope.on_failure or options.on_failure
        follow = self.new_id() if on_failure else ""
        failure_ms = max(1, round(failure_ttl * 1000))
        is_asked = envelope.headers is not None and envelope.headers.intent == "request"
        return policy, Terms(
            queue,
            round(result_ttl * 1000),
            failure_ms,
            on_failure,
            follow,
            is_asked,
            not self.client.source.is_cluster,
            self.settings.remote_tracebacks,
            self.keys_of(queue).signer,
        )

    def task_for(self, queue: str, target: str) -> Task[..., Any] | None:
        """The task of that name; on queues of the bus, the handler of a service, and nothing else."""
        if ":" in queue and is_bus_name(queue):
            return self.bus.handler(queue, target)
        return self.tasks.get(target) or self.built_in.get(target)

    # the server
    @property
    def client(self) -> Client:
        """The way to the server, made when first needed."""
        if self._client is None:
            with self._lock:
                if self._client is None:
                    self._client = self._connect()
        return self._client

    def _connect(self) -> Client:
        settings = self.settings
        if settings.url is None and settings.env == "prod":
            raise ConfigurationError(
                'env="prod" and no server: set RELEVO_URL (redis://…). '
                "The embedded server is for development and is not used in production silently."
            )
        return Client(
            settings.url,
            self.keys,
            data_dir=data_directory(settings.data_dir) if settings.url is None else Path(settings.data_dir),
            connect_timeout=settings.connect_timeout,
            call_timeout=settings.call_timeout,
            server_check=settings.server_check or ("strict" if settings.env == "prod" else "warn"),
        )

    def run(self, plan: Plan[T]) -> T:
        """Carry a plan of the store out and block meanwhile."""
        return self.client.run(plan)

    async def arun(self, plan: Plan[T]) -> T:
        """Carry a plan of the store out on the running event loop."""
        return await self.client.arun(plan)

    def close(self) -> None:
        """Close the blocking connections. They open again when needed."""
        if self._client is not None:
            self._client.close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        if self._client is not None:
            await self._client.aclose()

    def unknown_task(self, target: str) -> str:
        """A sentence about a task nobody registered here."""
        return f"no task {target!r} in app {self.name!r}{did_you_mean(target, self.tasks)}"


class _Decorator:  # only for type checkers: what @app.task(...) gives keeps the function's signature
    @overload
    def __call__(self, func: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, func: Callable[P, R], /) -> Task[P, R]: ...
    def __call__(self, func: Callable[..., Any], /) -> Any: ...


_NOTHING = Envelope("")


async def _gather(results: list[Any]) -> list[Any]:
    """Gives the list of results that it gets, for several jobs that take it."""
    return results
