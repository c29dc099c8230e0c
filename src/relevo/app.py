"""Relevo: the object that puts the parts together."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar, overload

from relevo.audit.trail import Audit
from relevo.bus.bus import Bus
from relevo.bus.conversation_api import Conversations
from relevo.bus.service import Service
from relevo.codec.forms import Codec
from relevo.dead.letters import DeadLetters
from relevo.dependencies.filling import Dependencies
from relevo.engine import finding
from relevo.engine.engine import Engine
from relevo.engine.following import checked as checked_filters
from relevo.engine.following import events_of_app
from relevo.engine.handle import Job
from relevo.engine.job_events import JobEvent, Kind
from relevo.engine.lifespan import Lifespan
from relevo.engine.lists import listed_pools, listed_queues
from relevo.engine.pauses import Pause, Until
from relevo.engine.task import Task
from relevo.errors import OptionError
from relevo.features import add_features
from relevo.health.gathering import alook, look
from relevo.health.gathering import cached as cached_health
from relevo.health.status import Health
from relevo.middleware.middleware import Middleware
from relevo.middleware.middleware import check as checked_middleware
from relevo.pools.pool import Pool, Pools, StillThere, pool_of
from relevo.queues.pauses_in_app import all_pauses, pausing, resuming
from relevo.queues.queue import Queue
from relevo.registration import Decorator, as_task, registered
from relevo.schedules.handle import Schedule, Schedules, amake_schedule, make_schedule
from relevo.settings import Settings, load
from relevo.text.durations import Duration
from relevo.upkeep.purge import purging
from relevo.upkeep.report import UpkeepReport
from relevo.upkeep.rules import check_declared
from relevo.upkeep.sweeping import sweeping
from relevo.workflows.finding import own_workflow
from relevo.workflows.finding import workflow as workflow_of
from relevo.workflows.steps import Step
from relevo.workflows.workflow import Workflow

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M", bound=Middleware | type[Middleware])


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
        clock_key = settings.pop("_clock_key", "")
        middleware = settings.pop("middleware", ())
        self.engine = Engine(name, load(arguments=settings), clock_key)
        add_features(self.engine)
        for one in middleware:
            self.middleware(one)

    @property
    def name(self) -> str:
        """The name of the app."""
        return self.engine.name

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self.engine.settings

    @property
    def tasks(self) -> dict[str, Task[..., Any]]:
        """The registered tasks by their names."""
        return self.engine.tasks

    def __repr__(self) -> str:
        return f"<Relevo {self.name} in {self.settings.env}, {len(self.tasks)} tasks>"

    @property
    def codec(self) -> Codec:
        """The types of arguments and results: `app.codec.register(type, encode, decode)` adds one."""
        return Codec()

    # tasks
    @overload
    def task(self, func: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, func: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, func: None = None, /, *, name: str | None = None, **options: Any) -> Decorator: ...

    def task(self, func: Any = None, /, *, name: str | None = None, **options: Any) -> Any:
        """Register a function as a task: `@app.task` or `@app.task(retries=5, timeout="30s", …)`.

        Its name is `module.function` unless `name` says otherwise; workers find it by that name, so it must be the
        same where jobs are made and where they run. With `cron="30 2 * * *", tz="Europe/Madrid"` or `every="10s"`
        workers run it by the clock; `schedule` lists the other options. `concurrency=5, rate="10/s"` are the defaults
        of its limits, which operators can change.
        """
        if func is not None:
            return self._register(func, name, options)
        return lambda function: self._register(function, name, options)

    def _register(self, func: Callable[..., Any], name: str | None, options: dict[str, Any]) -> Task[..., Any]:
        return registered(self.engine, func, name, options)

    def middleware(self, middleware: M, /) -> M:
        """Put code around each enqueue and each attempt: `app.middleware(Locale())`, or `@app.middleware` on a class.

        The first one is the outermost, as in `Relevo("shop", middleware=[RequestId(), Locale()])`.
        """
        self.engine.middleware.append(checked_middleware(middleware))
        for task in (*self.tasks.values(), *self.engine.part(Bus).handlers()):
            task.__dict__.pop("attempt", None)  # it is around what ran already, too
        return middleware

    @property
    def dependency_overrides(self) -> dict[Callable[..., Any], Callable[..., Any]]:
        """For tests: `app.dependency_overrides[get_db] = get_fake` has tasks filled in with another function's value.

        Not in child processes. `relevo.testing.bind` sets it back when the test ends.
        """
        return self.engine.part(Dependencies).overrides

    def lifespan(self, func: F, /) -> F:
        """What each worker process opens before its first job and closes after its last one, when it stops.

        A function with one `yield`, async or plain, that takes the app or nothing. Tasks find what it yields in
        `current_job().state`. If it raises before its `yield`, the worker ends with exit code 2.

        >>> @app.lifespan                                                             # doctest: +SKIP
        ... async def lifespan(app):
        ...     async with httpx.AsyncClient() as client:
        ...         yield client
        """
        self.engine.part(Lifespan).declare(func, self)
        return func

    @overload
    def function(self, func: Callable[P, Awaitable[R]], *, trusted: bool = False) -> Task[P, R]: ...
    @overload
    def function(self, func: Callable[P, R], *, trusted: bool = False) -> Task[P, R]: ...

    def function(self, func: Callable[..., Any], *, trusted: bool = False) -> Task[..., Any]:
        """A plain function as a task, found by workers through its import path.

        Its module must be one the app allows (`allow=["shop.jobs"]`, which includes what is below it): a worker
        runs nothing else, whatever a forged job may name. With `trusted` this process does not ask; workers do.
        """
        return as_task(self.engine, func) if isinstance(func, Task) else self.engine.function(func, trusted=trusted)

    @overload
    def enqueue(self, func: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Job[R]: ...
    @overload
    def enqueue(self, func: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> Job[R]: ...
    @overload
    def enqueue(self, func: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Job[R]: ...

    def enqueue(self, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Job[Any]:
        """Put a call of a task, or of a plain function of an allowed module, on its queue."""
        return as_task(self.engine, func).enqueue(*args, **kwargs)

    @overload
    async def aenqueue(self, func: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Job[R]: ...
    @overload
    async def aenqueue(self, func: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> Job[R]: ...
    @overload
    async def aenqueue(self, func: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Job[R]: ...

    async def aenqueue(self, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Job[Any]:
        """`enqueue` for async code."""
        return await as_task(self.engine, func).aenqueue(*args, **kwargs)

    # the bus
    def service(
        self, name: str, *, context: str | Sequence[str] | None = None, keep_events: Duration | None = None
    ) -> Service:
        """A service of the bus, to serve its actions or to send messages as it: `app.service("embedding")`.

        `context` is a queue of its own beside the service's others, for a tenant or a session that must be apart.
        `keep_events`: how long its events are kept for subscribers that `catch_up`.
        """
        return Service(self.engine, name, context, keep_events)

    @property
    def conversations(self) -> Conversations:
        """What was made on behalf of each request of the bus: list, trace, clean up and count it."""
        return Conversations(self.engine)

    def sweep(self, *, dry_run: bool = True) -> UpkeepReport:
        """Find what is no longer served or used, and with `dry_run=False` remove it. Workers do so by themselves."""
        return self.engine.run(sweeping(self.engine, dry_run=dry_run))

    async def asweep(self, *, dry_run: bool = True) -> UpkeepReport:
        """`sweep` for async code."""
        return await self.engine.arun(sweeping(self.engine, dry_run=dry_run))

    def purge(
        self, *, dry_run: bool = True, queue: str | None = None, watch: Callable[[int], None] | None = None
    ) -> UpkeepReport:
        """Find what is in its state for too long (setting `purge_ages`), and with `dry_run=False` end or remove it.

        Of all queues and pools of this app, or of one. A dry run gives exactly the list of what would be done. `watch`
        is called with how many were ended or removed so far.
        """
        return self.engine.run(purging(self.engine, dry_run=dry_run, queue=queue, watch=watch))

    async def apurge(
        self, *, dry_run: bool = True, queue: str | None = None, watch: Callable[[int], None] | None = None
    ) -> UpkeepReport:
        """`purge` for async code."""
        return await self.engine.arun(purging(self.engine, dry_run=dry_run, queue=queue, watch=watch))

    # jobs and queues
    def queue(self, name: str | None = None) -> Queue:
        """A queue by its name."""
        return Queue(self.engine, self.settings.queue if name is None else name)

    def queues(self) -> list[str]:
        """Names of the app's queues in use: its own, and those of the bus that it serves."""
        return self.engine.run(listed_queues(self.engine))

    async def aqueues(self) -> list[str]:
        """`queues` for async code."""
        return await self.engine.arun(listed_queues(self.engine))

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
        return self.engine.run(pausing(self.engine, tenant, task, reason, by, until))

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
        return await self.engine.arun(pausing(self.engine, tenant, task, reason, by, until))

    def resume(self, *, task: str | Task[..., Any] | None = None, tenant: str | None = None) -> list[str]:
        """Start jobs of a task or a tenant again, in all queues of the app: where that changed something."""
        return self.engine.run(resuming(self.engine, tenant, task))

    async def aresume(self, *, task: str | Task[..., Any] | None = None, tenant: str | None = None) -> list[str]:
        """`resume` for async code."""
        return await self.engine.arun(resuming(self.engine, tenant, task))

    def pauses(self) -> list[Pause]:
        """What is paused in any queue, since when and until when, why and by whom; open breakers, too."""
        return self.engine.run(all_pauses(self.engine))

    async def apauses(self) -> list[Pause]:
        """`pauses` for async code."""
        return await self.engine.arun(all_pauses(self.engine))

    def pool(
        self,
        name: str,
        *,
        states: Sequence[str] | None = None,
        still_there: StillThere | None = None,
        data_ttl: Duration | None = None,
    ) -> Pool:
        """A pool by its name: entities with metadata in named states, such as machines that are pending or ready.

        These options hold wherever this app names the pool. `states`: no others are taken. `still_there`:
        asked by the purge, of what is in a state for too long, whether it still exists. `data_ttl`: how long what is
        known of an entity is kept once it left all states (default: `failure_ttl`).
        """
        if states is None and still_there is None and data_ttl is None:
            return pool_of(self.engine, name)
        pool = Pool(self.engine, name, states, still_there, data_ttl)
        if pool.states:
            check_declared(self.settings.purge_ages, name, pool.states)
        self.engine.part(Pools).declared[name] = pool
        return pool

    def pools(self) -> list[str]:
        """Names of all pools in use."""
        return self.engine.run(listed_pools(self.engine))

    async def apools(self) -> list[str]:
        """`pools` for async code."""
        return await self.engine.arun(listed_pools(self.engine))

    def events(
        self, *, queue: str | None = None, task: str | Task[..., Any] | None = None, kinds: Iterable[Kind] = ()
    ) -> AsyncGenerator[JobEvent, None]:
        """What happens to jobs from now on: started, progress, logs, retried, ended. Nothing is polled or kept.

        Of all queues and tasks, or of one. `kinds`: only these.

        >>> async for event in app.events(kinds=["ended"]):      # doctest: +SKIP
        ...     print(event.task, event.state)
        """
        return events_of_app(self.engine, *checked_filters(self.engine, queue, task, kinds))

    def job(self, id: str, *, queue: str | None = None) -> Job[Any]:
        """A job by its id; without `queue`, the app's queues are asked, and then the others of the bus.

        UnknownJob if there is none.
        """
        return self.engine.run(finding.job(self.engine, id, queue))

    async def ajob(self, id: str, *, queue: str | None = None) -> Job[Any]:
        """`job` for async code."""
        return await self.engine.arun(finding.job(self.engine, id, queue))

    def workflow(self, id: str | None = None, *, queue: str | None = None) -> Workflow[Any]:
        """A workflow by its id; without one, that of the job that runs here. UnknownJob if there is none."""
        return own_workflow(self.engine) if id is None else self.engine.run(workflow_of(self.engine, id, queue))

    async def aworkflow(self, id: str | None = None, *, queue: str | None = None) -> Workflow[Any]:
        """`workflow` for async code."""
        return own_workflow(self.engine) if id is None else await self.engine.arun(workflow_of(self.engine, id, queue))

    # schedules
    @property
    def schedules(self) -> Schedules:
        """All schedules: decorated, from settings, and made at run time."""
        return Schedules(self.engine)

    def schedule(
        self, name: str, call: Task[..., Any] | Step[Any, Any], /, *, run_now: bool = False, **options: Any
    ) -> Schedule:
        """Run a task, or a call such as `report.s(7)`, by the clock. A second call changes the schedule of that name.

        Give `cron` (five fields, or six with seconds in front, or "@daily") and the `tz` it is meant in, or `every`.
        `overlap`: "skip" a tick while the run before still goes on (the default), "queue" it behind that, or "allow"
        both. `missed`: ticks that no worker fired in time are made up for "once" (the default), "all" up to
        `missed_limit`, or "skip"ped. `jitter` spreads the starts. All other options are those of the task's jobs.
        It first runs at its next tick; with `run_now`, at once too when it is new.
        """
        return make_schedule(self.engine, name, call, options, run_now=run_now)

    async def aschedule(
        self, name: str, call: Task[..., Any] | Step[Any, Any], /, *, run_now: bool = False, **options: Any
    ) -> Schedule:
        """`schedule` for async code."""
        return await amake_schedule(self.engine, name, call, options, run_now=run_now)

    @property
    def audit(self) -> Audit:
        """What operators did: `app.audit.list()`."""
        return Audit(self.engine)

    @property
    def dead(self) -> DeadLetters:
        """The dead letters."""
        return DeadLetters(self.engine)

    def health(self, *, cached: bool = False) -> Health:
        """Whether all is well, and why not: every queue, looked at now, at the same cost however many jobs there are.

        With `cached`, what a worker found last (setting `health`); `unknown`, if that is too long ago.
        """
        return self.engine.run(cached_health(self.engine)) if cached else look(self.engine)

    async def ahealth(self, *, cached: bool = False) -> Health:
        """`health` for async code."""
        return await (self.engine.arun(cached_health(self.engine)) if cached else alook(self.engine))

    def close(self) -> None:
        """Close the blocking connections. They open again when needed."""
        self.engine.close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        await self.engine.aclose()
