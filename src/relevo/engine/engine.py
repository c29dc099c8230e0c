"""What features build on: settings, keys, the way to the server, its clock, ids, and the registered tasks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import msgspec

from relevo.engine.client import Client
from relevo.engine.duty import GivesDuties
from relevo.engine.handle import GivenUp
from relevo.engine.ids import Ids
from relevo.engine.job import Envelope, Record
from relevo.engine.key_format import agreeing
from relevo.engine.observers import GivesObserver
from relevo.engine.options import Options
from relevo.engine.outbox import relay
from relevo.engine.outcome import Happened, Policy
from relevo.engine.settle import Held, Terms
from relevo.engine.targets import importable
from relevo.engine.task import Task
from relevo.errors import ConfigurationError, OptionError, TargetError
from relevo.middleware.middleware import Middleware
from relevo.settings import Settings, data_directory
from relevo.signing import Keyring, Signer
from relevo.store.keys import AppKeys, QueueKeys, app_keys, bus_keys
from relevo.store.plan import Call, Plan
from relevo.store.server_time import ServerTime, server_time
from relevo.telemetry import telemetry
from relevo.text.names import is_bus_name, is_own_name, known_as, place_of, queue_address, task_queue
from relevo.text.nearest import did_you_mean

T = TypeVar("T")
P = TypeVar("P")

#: A queue is put on the list of queues again after this many seconds of use.
LIST_AGAIN = 3600.0
#: What `_bind` sets.
_BOUND = (
    "settings", "keys", "bus_keys", "own_keys", "lease_ms", "keyring", "_server_time", "_clock_key", "_queue_keys",
    "_listed", "_client",
)  # fmt: skip
_NOTHING = Envelope("")


class HasEngine(Protocol):
    """An app, for code below `relevo.app`."""

    @property
    def engine(self) -> Engine:
        """Its engine."""


class Engine:
    """The engine of one app. Opens nothing before the first call that needs the server."""

    def __init__(self, name: str, settings: Settings, clock_key: str = "") -> None:
        self.name = name
        self.tasks: dict[str, Task[..., Any]] = {}
        #: Tasks that every app has.
        self.built_in: dict[str, Task[..., Any]] = {}
        self.new_id = Ids()
        self._lock = threading.Lock()
        self._parts: dict[type[Any], Any] = {}
        self._given = settings
        self._replaced: dict[str, Any] = {}
        self._bind(settings, clock_key)
        #: Makes spans for OpenTelemetry; None: it is switched off.
        self.telemetry = telemetry(settings.otel)
        self.keys_of(settings.queue)  # refuses an invalid name
        #: Around each enqueue and each attempt, the outermost first.
        self.middleware: list[Middleware] = []
        #: Options of tasks that set no others.
        self.default_options = _options_of(settings)
        #: `module:attribute` of the app, loaded by child processes of a worker before a task's module; '': they find a
        #: task in its module.
        self.home = ""
        #: `module:attribute` by which a command imported the app; '': a program made it.
        self.loaded_from = ""
        #: The class of its tasks.
        self.task_class: type[Task[..., Any]] = Task
        #: Finds the handler of a message by its queue and type. Set by the bus.
        self.handler_of: Callable[[str, str], Task[..., Any] | None] = lambda _queue, _target: None
        #: Why a message may not be handled; None: it may. Set by the bus.
        self.message_refusal: Callable[[str, Held, int], Happened | None] = lambda _queue, _held, _now_ms: None
        #: The entity of a pool that a dead letter is about; None: it is about a job. Set by the pools.
        self.entity_of: Callable[[str, Record], GivenUp | None] = lambda _id, _record: None
        #: Names the queues of the services that this program declares, for a worker. Set by the bus.
        self.service_queues: Callable[[str], list[str]] = lambda _worker: []
        #: Whether workers log a line about each job that went well, as they do about those that did not.
        self.logs_done = False
        #: Each gives the duties of a feature for a worker. Filled by the app.
        self.duties: list[GivesDuties] = []
        #: Each gives the outcome observer of a feature for a queue of a worker. Filled by the app.
        self.observers: list[GivesObserver] = []

    def _bind(self, settings: Settings, clock_key: str) -> None:
        """Set everything that depends on the server and the names in use."""
        self.settings = settings
        self.keys = AppKeys(settings.prefix, settings.env, self.name)
        #: Keys shared by all services under this prefix and env.
        self.bus_keys = bus_keys(settings.prefix, settings.env, clock_key=clock_key)
        #: Keys of the app as a whole that scripts write.
        self.own_keys = app_keys(settings.prefix, settings.env, self.name, clock_key=clock_key)
        self.lease_ms = round(settings.lease * 1000)
        #: Signs jobs, messages and results.
        self.keyring = Keyring(settings.signing_keys)
        self._server_time = ServerTime()
        self._clock_key = clock_key
        self._queue_keys: dict[str, QueueKeys] = {}
        self._listed: dict[str, float] = {}
        self._client: Client | None = None

    @contextmanager
    def rebound(self, *, clock_key: str = "", **settings: Any) -> Iterator[None]:
        """Use another server or other names for a while. For tests; no other code may use the app at that time."""
        before = {name: getattr(self, name) for name in _BOUND}
        replaced, given = self._replaced, self._given
        self._replaced = {**replaced, **settings}
        self._bind(msgspec.structs.replace(self.settings, **settings), clock_key)
        try:
            yield
        finally:
            self.close()
            for name, value in before.items():
                setattr(self, name, value)
            self._replaced = replaced
            if self._given is not given:
                self.rebind(self._given)

    def rebind(self, settings: Settings, *, name: str | None = None) -> None:
        """Take other settings, and another name, from now on. What `rebound` replaced for a test stays replaced.

        Options of tasks that are registered already stay as they are.
        """
        self.close()
        self.name = name or self.name
        self._given = settings
        self.default_options = _options_of(settings)
        self._bind(msgspec.structs.replace(settings, **self._replaced), self._clock_key)

    def part(self, kind: type[P]) -> P:
        """The state of a feature for this app, such as `engine.part(Bus)`; made when first asked for."""
        found = self._parts.get(kind)
        if found is None:
            found = self._parts.setdefault(kind, cast("Callable[[Engine], P]", kind)(self))
        return cast("P", found)

    # keys
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

    def can_be_queue(self, name: str) -> bool:
        """Whether a name found on a list is valid; other programs may have written anything there."""
        try:
            self.keys_of(name)
        except OptionError:
            return False
        return True

    def name_abroad(self, queue: str) -> str:
        """The queue's name for other apps on the same bus: `shop:actions:default`."""
        return queue if is_bus_name(queue) else str(task_queue("", "", self.name, queue))

    # the server's clock
    def now_ms(self) -> Generator[Call[Any], Any, int]:
        """The server's clock; in tests with the shift that scripts see."""
        now_ms: int = yield server_time()
        if self._clock_key:
            now_ms += int((yield Call([b"GET", self._clock_key.encode()])) or 0)
        return now_ms

    def about_now_ms(self) -> Generator[Call[Any], Any, int]:
        """The server's clock as read a few seconds ago, continued by this machine's: exact enough for deadlines."""
        return self.now_ms() if self._clock_key else self._server_time.now_ms(self.now_ms)

    # lists of queues
    def is_listed(self, queue: str) -> bool:
        """Whether this process has put the queue on its list recently."""
        return time.monotonic() < self._listed.get(queue, 0.0)

    def list_queue(self, queue: str) -> Generator[Call[Any], Any, None]:
        """Put a queue on the list of queues. Before its first job, so that no job is in an unlisted queue."""
        if not self.is_listed(queue):
            yield from agreeing(self.own_keys if is_own_name(queue) else self.bus_keys, queue)
            self._note_listed(queue)

    def list_served(self, queue: str) -> Generator[Call[Any], Any, None]:
        """The same for a queue that a worker of this app serves; one of the bus goes on the app's own list, too."""
        yield from self.list_queue(queue)
        own = f"own {queue}"
        if is_bus_name(queue) and not self.is_listed(own):
            yield from agreeing(self.own_keys, known_as(queue))
            self._note_listed(own)

    def list_pool(self, name: str) -> Generator[Call[Any], Any, None]:
        """Put a pool on the list of pools, before its first entity."""
        listed = f"pool {name}"
        if not self.is_listed(listed):
            yield from agreeing(self.own_keys, name, on=self.keys.pools)
            self._listed[listed] = time.monotonic() + LIST_AGAIN

    def _note_listed(self, queue: str) -> None:
        self._listed[queue] = time.monotonic() + min(LIST_AGAIN, self.settings.orphan_age / 4)

    def forget_lists(self) -> None:
        """The server may have lost its lists: put queues and pools there again at their next use."""
        self._listed.clear()

    # tasks
    def task_for(self, queue: str, target: str) -> Task[..., Any] | None:
        """The task of that name; in queues of the bus, the handler of a service, and nothing else."""
        if ":" in queue and is_bus_name(queue):
            return self.handler_of(queue, target)
        return self.tasks.get(target) or self.built_in.get(target)

    def function(self, func: Callable[..., Any], *, trusted: bool = False) -> Task[..., Any]:
        """A plain function as a task; its module must be allowed, unless `trusted`."""
        module, name = importable(func)
        if not trusted and not self.allows(module):
            raise TargetError(
                f"{module}.{name} is not in a module this app allows; "
                f"decorate it with @app.task, or add {module!r} to the setting `allow`"
            )
        return self.task_class(self, func, f"{module}:{name}", self.default_options)

    def allows(self, module: str) -> bool:
        """Whether plain functions of a module may be jobs."""
        return any(module == one or module.startswith(one + ".") for one in self.settings.allow)

    def unknown_task(self, target: str) -> str:
        """A sentence about a task that is not registered here."""
        return f"no task {target!r} in app {self.name!r}{did_you_mean(target, self.tasks)}"

    # how jobs end
    def failure_ms(self, envelope: Envelope | None) -> int:
        """How long the record of a job is kept that fails."""
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

    def relay(self, *queues: str) -> Generator[Call[Any], Any, int]:
        """Deliver the outbox messages of these queues that are due; returns how many. Workers do so by themselves."""
        return relay(self.keys_of, queues, self.settings.dead_max)

    # the server
    @property
    def client(self) -> Client:
        """The client of the server, made when first needed."""
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
        """Carry out a plan of the store; blocks until it is done."""
        return self.client.run(plan)

    async def arun(self, plan: Plan[T]) -> T:
        """Carry out a plan of the store on the running event loop."""
        return await self.client.arun(plan)

    def close(self) -> None:
        """Close the blocking connections. They open again when needed."""
        if self._client is not None:
            self._client.close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        if self._client is not None:
            await self._client.aclose()


def _options_of(settings: Settings) -> Options:
    return Options(
        queue=settings.queue,
        timeout=settings.timeout,
        retries=settings.retries,
        result_ttl=settings.result_ttl,
        failure_ttl=settings.failure_ttl,
        max_crashes=settings.max_crashes,
    )
