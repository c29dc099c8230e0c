"""A service: a name on the bus, under which actions are served and messages are sent."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

import msgspec

from relevo.bus.actions import ActionSignature
from relevo.bus.bus import Bus
from relevo.bus.callbacks import Callbacks, reporting, sending
from relevo.bus.enqueuing import athrough_message, through_message
from relevo.bus.events import Subscribed, catching_up, delivering, log_of, publishing
from relevo.bus.headers import Sending
from relevo.bus.naming import action_name, context_of, queue_of, service_name
from relevo.bus.outgoing import Outgoing, like_the_last, outgoing, time_left
from relevo.bus.requests import Request
from relevo.engine.context import current_job, running
from relevo.engine.handle import Job
from relevo.engine.options import OF_LIMITS, ONE_JOB_ONLY, Options, changed
from relevo.engine.targets import refuse_local
from relevo.engine.task import Task
from relevo.errors import OptionError, StoreError, TargetError
from relevo.limits import code_limits
from relevo.telemetry import making
from relevo.text.durations import Duration, seconds
from relevo.text.nearest import did_you_mean

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from relevo.engine.engine import Engine

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

#: Seconds that a request waits by default: as long as people and gateways wait.
REQUEST_TIMEOUT = 30.0
#: Seconds until a callback gets a timeout, by default.
CALLBACK_TIMEOUT = 86_400.0


class Registering(Protocol):
    """What `@svc.action(…)` gives: it keeps the function's signature."""

    @overload
    def __call__(self, func: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, func: Callable[P, R], /) -> Task[P, R]: ...


class Service:
    """One service of the bus, for its own code. Made by `app.service("embedding")`.

    >>> svc = app.service("embedding")                                              # doctest: +SKIP
    >>> @svc.action("generate_batch")                                               # doctest: +SKIP
    ... async def generate_batch(texts: list[str]) -> list[list[float]]: ...
    >>> await svc.arequest("billing.charge", {"cents": 990}, timeout=5)             # doctest: +SKIP

    Services are found by name under the app's `prefix` and `env`, in any process and app.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        context: str | Sequence[str] | None = None,
        keep_events: Duration | None = None,
    ) -> None:
        self.engine = engine
        self.name = service_name(name)
        self.context = context_of(context)
        self._log = log_of(self.name, keep_events)
        engine.keys_of(self.queue)  # refuses an invalid name

    @property
    def queue(self) -> str:
        """The queue of its actions: `app.queue(svc.queue).stats()`."""
        return queue_of(self.name, self.context, "actions")

    @property
    def callbacks(self) -> str:
        """The queue of its callbacks."""
        return queue_of(self.name, self.context, "callbacks")

    @property
    def actions(self) -> dict[str, Task[..., Any]]:
        """Its actions that this process knows."""
        return self.engine.part(Bus).actions_of(self.name)

    def __repr__(self) -> str:
        return f"<Service {self.engine.keys_of(self.queue).address}>"

    # serving
    def action(self, name: str | None = None, /, **options: Any) -> Registering:
        """Serve an action with the function below: `@svc.action("generate_batch", retries=3)`.

        Its arguments are the message's data by name, or one msgspec struct or dataclass that takes them all; they are
        checked by the annotations, and data that does not fit is the sender's error. Options are those of tasks.
        """
        if name is not None and not isinstance(name, str):
            raise OptionError(f'an action is named, such as @svc.action("save"), found {name!r:.80}')

        def register(func: Callable[..., Any]) -> Any:
            given = action_name(name if name is not None else getattr(func, "__name__", ""))
            terms = dict(options)
            limit = code_limits.taken(terms)
            task = self._handler(func, f"{self.name}.{given}", self.queue, terms)
            self.engine.part(code_limits.CodeLimits).add(self.queue, task.target, limit)
            self.engine.part(Bus).add_action(task.target, task)
            self.engine.part(Bus).served[self.name, self.context] = None
            return task

        return register

    def on(
        self,
        pattern: str,
        /,
        *,
        broadcast: bool = False,
        max_backlog: int = 100_000,
        discard: str = "old",
        retention: Duration = "7d",
        inactive_after: Duration = "7d",
        **options: Any,
    ) -> Registering:
        """Handle events: `@svc.on("ingestion.document_processed")`, with `*` for one part and `>` for all the rest.

        Each service gets each event once, in a queue of the subscription's own, with retries and dead letters; events
        wait for `retention` while no instance of the service is alive. With `broadcast` every live process gets them.
        """

        def register(func: Callable[..., Any]) -> Any:
            subscribed = Subscribed.of(
                self.name,
                pattern,
                broadcast=broadcast,
                max_backlog=max_backlog,
                discard=discard,
                retention=retention,
                inactive_after=inactive_after,
            )
            task = self._handler(func, f"{self.name}.on.{getattr(func, '__name__', '')}", subscribed.queue, options)
            self.engine.part(Bus).add_subscription(msgspec.structs.replace(subscribed, task=task))
            return task

        return register

    def _handler(self, func: Callable[..., Any], target: str, queue: str, options: dict[str, Any]) -> Task[..., Any]:
        if isinstance(func, Task) or not inspect.isroutine(func):
            raise TargetError(f"{target}: a function is needed, found {func!r:.80}")
        if wrong := sorted(OF_LIMITS & options.keys()):
            raise OptionError(
                f"{target}: {wrong[0]} is an option of tasks and actions; a subscription has a queue of its own, "
                f"which app.queue({queue!r}).limit(…) limits"
            )
        if "queue" in options:
            raise OptionError(f"{target}: the queue of an action is that of its service; leave `queue` out")
        # The result of an action goes to its requests and callbacks; no record of it is needed.
        chosen: Options = changed(self.engine.default_options, {"result_ttl": 0, **options}, refuse=ONE_JOB_ONLY)
        chosen = changed(chosen, {"queue": queue})
        if chosen.executor == "process":
            refuse_local(func)
        return Task(self.engine, func, target, chosen, signature=ActionSignature(func))

    # sending
    def send(
        self,
        type: str,
        data: Any = None,
        /,
        *,
        on_reply: str | None = None,
        on_timeout: str | None = None,
        on_progress: str | None = None,
        timeout: Duration | None = None,
        context: Any = None,
        sticky: bool = False,
        retries: int | None = None,
        **about: Any,
    ) -> Job[Any]:
        """Send a message without waiting. When this returns, the server has it. Failed attempts are retried, then the
        message is dead-lettered.

        With `on_reply`, this service's action of that name is called with a `Reply` when the message has ended, on any
        live instance of the service; after `timeout` (a day) `on_timeout` is called, or else `on_reply`. Both get
        `context`. `on_progress` is called with what the handler reports. `sticky`: by the worker of this process, if it
        is still alive.

        `about`: tenant, tier, session, conversation, correlation_id (by default those of the message being handled),
        priority, delay, idempotency_key, version, traceparent, and `at`, the context of the receiving service.
        """
        if self.engine.middleware and "_carried" not in about:
            again = partial(
                self.send,
                type,
                on_reply=on_reply,
                on_timeout=on_timeout,
                on_progress=on_progress,
                timeout=timeout,
                context=context,
                sticky=sticky,
                retries=retries,
            )
            return through_message(self.engine, type, data, about, again)
        with making(self.engine.telemetry, "send", str(type)) as span:
            message, wanted = self._message(
                type,
                data,
                about,
                on_reply=on_reply,
                on_timeout=on_timeout,
                on_progress=on_progress,
                timeout=timeout,
                context=context,
                sticky=sticky,
                retries=retries,
            )
            _name(span, message)
            return Job(self.engine, self.engine.run(sending(self.engine, message, wanted)), message.queue)

    async def asend(
        self,
        type: str,
        data: Any = None,
        /,
        *,
        on_reply: str | None = None,
        on_timeout: str | None = None,
        on_progress: str | None = None,
        timeout: Duration | None = None,
        context: Any = None,
        sticky: bool = False,
        retries: int | None = None,
        **about: Any,
    ) -> Job[Any]:
        """`send` for async code."""
        if self.engine.middleware and "_carried" not in about:
            again = partial(
                self.asend,
                type,
                on_reply=on_reply,
                on_timeout=on_timeout,
                on_progress=on_progress,
                timeout=timeout,
                context=context,
                sticky=sticky,
                retries=retries,
            )
            return await athrough_message(self.engine, type, data, about, again)
        with making(self.engine.telemetry, "send", str(type)) as span:
            message, wanted = self._message(
                type,
                data,
                about,
                on_reply=on_reply,
                on_timeout=on_timeout,
                on_progress=on_progress,
                timeout=timeout,
                context=context,
                sticky=sticky,
                retries=retries,
            )
            _name(span, message)
            return Job(self.engine, await self.engine.arun(sending(self.engine, message, wanted)), message.queue)

    def _message(
        self,
        type: str,
        data: Any,
        about: dict[str, Any],
        *,
        on_reply: str | None = None,
        on_timeout: str | None = None,
        on_progress: str | None = None,
        timeout: Duration | None = None,
        context: Any = None,
        sticky: bool = False,
        retries: int | None = None,
    ) -> tuple[Outgoing, Callbacks | None]:
        limit = None if timeout is None else seconds(timeout, what="timeout")
        if limit is not None and limit <= 0:
            raise OptionError(f"timeout: more than 0 seconds is needed, found {timeout!r:.80}; None is for no limit")
        chosen: dict[str, Any] = (
            {} if retries is None else {"retries": changed(Options(), {"retries": retries}).retries}
        )
        wanted = None
        if on_reply is not None:
            limit = CALLBACK_TIMEOUT if limit is None else limit
            wanted = Callbacks(
                service=self.name,
                context=self.context,
                on_reply=on_reply,
                on_timeout=on_timeout,
                on_progress=on_progress,
                timeout=limit,
                given=context,
                sticky=sticky,
            )
            chosen["passes"] = True
        elif on_timeout is not None or on_progress is not None or context is not None or sticky:
            raise OptionError("on_timeout, on_progress, context and sticky belong to a callback: give on_reply, too")
        options = _options(about)
        if wanted is not None and options.idempotency_key is not None:
            raise OptionError(
                "idempotency_key: a message with a callback has a callback of its own; leave one of them out"
            )
        return outgoing(self.engine, self.name, type, data, options, intent="send", timeout=limit, **chosen), wanted

    # asking
    @overload
    def request(
        self,
        type: str,
        data: Any = None,
        /,
        *,
        returns: type[T],
        timeout: Duration = ...,
        wait: bool = ...,
        **about: Any,
    ) -> T: ...
    @overload
    def request(
        self,
        type: str,
        data: Any = None,
        /,
        *,
        returns: None = None,
        timeout: Duration = ...,
        wait: bool = ...,
        **about: Any,
    ) -> Any: ...

    def request(
        self,
        type: str,
        data: Any = None,
        /,
        *,
        returns: Any = None,
        timeout: Duration = REQUEST_TIMEOUT,
        wait: bool = False,
        **about: Any,
    ) -> Any:
        """Call an action and wait for its result, at most `timeout` seconds (in a request: no longer than its caller).

        Raises NoResponders at once if no worker serves it (`wait=True`: wait for one), RemoteError if it failed there,
        RequestTimeout if no answer came; the request is cancelled then. `returns` is the type to decode the result to.
        The same `idempotency_key` gets the result of the first call, for ten minutes. For other options see `send`.
        """
        if self.engine.middleware and "_carried" not in about:
            again = partial(self.request, type, returns=returns, timeout=timeout, wait=wait)
            return through_message(self.engine, type, data, about, again)
        with making(self.engine.telemetry, "request", str(type)) as span:
            request = self._request(type, data, returns, timeout, wait, about)
            _name(span, request.message)
            return request.ask()

    @overload
    async def arequest(
        self,
        type: str,
        data: Any = None,
        /,
        *,
        returns: type[T],
        timeout: Duration = ...,
        wait: bool = ...,
        **about: Any,
    ) -> T: ...
    @overload
    async def arequest(
        self,
        type: str,
        data: Any = None,
        /,
        *,
        returns: None = None,
        timeout: Duration = ...,
        wait: bool = ...,
        **about: Any,
    ) -> Any: ...

    async def arequest(
        self,
        type: str,
        data: Any = None,
        /,
        *,
        returns: Any = None,
        timeout: Duration = REQUEST_TIMEOUT,
        wait: bool = False,
        **about: Any,
    ) -> Any:
        """`request` for async code."""
        if self.engine.middleware and "_carried" not in about:
            again = partial(self.arequest, type, returns=returns, timeout=timeout, wait=wait)
            return await athrough_message(self.engine, type, data, about, again)
        with making(self.engine.telemetry, "request", str(type)) as span:
            request = self._request(type, data, returns, timeout, wait, about)
            _name(span, request.message)
            return await request.aask()

    def _request(
        self, type: str, data: Any, returns: Any, timeout: Duration, wait: bool, about: dict[str, Any]
    ) -> Request:
        options = _options(about)
        if options.delay is not None:
            raise OptionError("delay: the caller of a request waits for it; send() it instead, with on_reply")
        limit = time_left(timeout, type)
        if options is _DEFAULTS and running.get() is None and self.engine.telemetry is None:
            return Request(
                self.engine, self.name, like_the_last(self.engine, self.name, type, data, limit), returns, wait
            )
        chosen: dict[str, Any] = {"passes": True, "retries": 0}
        if options.idempotency_key is not None:
            chosen["result_ttl"] = 600.0
        message = outgoing(self.engine, self.name, type, data, options, intent="request", timeout=limit, **chosen)
        return Request(self.engine, self.name, message, returns, wait)

    # reporting
    def report(self, value: Any) -> bool:
        """Report progress of the message being handled to its sender; False if no callback waits for it any more.

        The sender's `on_progress` is called with a `Reply` whose `result` is this value; without one, nothing happens.
        """
        return self.engine.run(reporting(self.engine, current_job(), value))

    async def areport(self, value: Any) -> bool:
        """`report` for async code."""
        return await self.engine.arun(reporting(self.engine, current_job(), value))

    def publish(self, topic: str, data: Any = None, /, **about: Any) -> int:
        """Publish an event: how many subscriptions get it; zero is no error.

        >>> ingestion.publish("document_processed", {"document_id": "7"})   # doctest: +SKIP
        """
        if self.engine.middleware and "_carried" not in about:
            again = partial(self.publish, topic)
            return through_message(self.engine, f"{self.name}.{topic}", data, about, again)
        with making(self.engine.telemetry, "publish", f"{self.name}.{topic}") as span:
            event = self.engine.run(publishing(self.engine, self.name, topic, data, _options(about), self._log))
            if span is not None:
                span.set_attribute("messaging.message.id", event.id)
            with suppress(StoreError):  # the event is stored: a worker will deliver it
                self.engine.run(delivering(self.engine, event))
            return len(event.to)

    async def apublish(self, topic: str, data: Any = None, /, **about: Any) -> int:
        """`publish` for async code."""
        if self.engine.middleware and "_carried" not in about:
            again = partial(self.apublish, topic)
            return await athrough_message(self.engine, f"{self.name}.{topic}", data, about, again)
        with making(self.engine.telemetry, "publish", f"{self.name}.{topic}") as span:
            event = await self.engine.arun(publishing(self.engine, self.name, topic, data, _options(about), self._log))
            if span is not None:
                span.set_attribute("messaging.message.id", event.id)
            with suppress(StoreError):
                await self.engine.arun(delivering(self.engine, event))
            return len(event.to)

    def catch_up(self, pattern: str, /, *, since: Duration | datetime) -> int:
        """Get past events again, since an age such as "1h" or a datetime. Returns how many there are.

        For this service's subscription with this pattern, from the log that the publisher keeps (`keep_events`).
        """
        return self.engine.run(catching_up(self.engine, self._subscribed(pattern), since))

    async def acatch_up(self, pattern: str, /, *, since: Duration | datetime) -> int:
        """`catch_up` for async code."""
        return await self.engine.arun(catching_up(self.engine, self._subscribed(pattern), since))

    def _subscribed(self, pattern: str) -> Subscribed:
        known = {one.pattern: one for one in self.engine.part(Bus).subscriptions.values() if one.service == self.name}
        if pattern not in known:
            raise OptionError(f"{self.name} has no subscription to {pattern!r:.80}{did_you_mean(str(pattern), known)}")
        return known[pattern]


def _name(span: Span | None, message: Outgoing) -> None:
    """Put the message's ids into its span, if there is one."""
    if span is not None:
        span.set_attributes(
            {
                "messaging.message.id": message.id,
                "messaging.message.conversation_id": message.headers.correlation or message.id,
                "messaging.destination.name": message.queue,
            }
        )


_DEFAULTS = Sending()


def _options(about: dict[str, Any]) -> Sending:
    if not about:
        return _DEFAULTS
    for name in about:
        if name not in Sending.__struct_fields__:
            raise OptionError(f"unknown option {name!r}{did_you_mean(name, Sending.__struct_fields__)}")
    return Sending(**about)
