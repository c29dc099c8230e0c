"""Tasks: registered functions, and how their jobs are made."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, Generic, Never, ParamSpec, TypeVar, overload

import msgspec

from relevo.codec import Signature
from relevo.dependencies.filling import Dependencies
from relevo.engine.attempts import attempt_of
from relevo.engine.changing import TRIES, change
from relevo.engine.dependents import needs_of, push_dependents
from relevo.engine.edges import Policy
from relevo.engine.enqueuing import athrough, call_of, through
from relevo.engine.handle import Job
from relevo.engine.ids import made_ms
from relevo.engine.job import Envelope, write
from relevo.engine.options import TASK_ONLY, ExecutorName, Options, changed
from relevo.engine.push import CHUNK, NewJob, chunks, push, push_parts, push_plain
from relevo.engine.targets import refuse_method
from relevo.errors import OptionError, PayloadError, TargetError
from relevo.middleware.headers import arguments_of, headed
from relevo.middleware.middleware import Call
from relevo.store.keys import QueueKeys
from relevo.store.plan import Ahead, Plan, Steps
from relevo.telemetry import making
from relevo.text.nearest import did_you_mean
from relevo.workflows.steps import Receiver, Step

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from relevo.engine.engine import Engine

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
Q = ParamSpec("Q")
T = TypeVar("T")
V = TypeVar("V")

#: Options a job carries only when they differ from its task's, so that a deploy also changes queued jobs.
_CARRIED_IF_CHANGED = ("retries", "backoff", "result_ttl", "failure_ttl", "on_failure")


_ROW = (tuple, list)
_POLICIES: dict[str, Policy] = {"cancel": "c", "run": "r", "wait": "w"}


def _yields(func: Any) -> bool:
    return inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func)


class Task(Generic[P, R]):
    """A function that workers can run. Made by `@app.task`; calling it runs the function right here.

    >>> job = charge.enqueue(7, cents=990)                             # doctest: +SKIP
    >>> job = charge.using(delay="5m", priority=50).enqueue(7, cents=990)  # doctest: +SKIP
    """

    def __init__(
        self,
        engine: Engine,
        func: Callable[P, Any],
        target: str,
        options: Options,
        *,
        signature: Signature | None = None,
        own: Options | None = None,
    ) -> None:
        self.engine = engine
        self.func = func
        self.target = target
        self.options = options
        refuse_method(func)
        self.signature = signature or Signature(func)
        self.signature.check()
        self.is_async = any(map(inspect.iscoroutinefunction, (func, getattr(func, "__call__", None))))  # noqa: B004
        if any(map(_yields, (func, getattr(func, "__call__", None)))):  # noqa: B004
            raise TargetError(f"{target} is a generator: called, it would do nothing; return the values as a list")
        #: where workers run it
        self.executor: ExecutorName = options.executor
        if options.executor in ("auto", "loop"):
            self.executor = "loop" if self.is_async else "thread"
        self._own = own or options
        self._head = self._envelope_head()
        self._head_and_comma = self._head + b","
        engine.keys_of(options.queue)  # refuses a name that cannot be one
        #: Whether its jobs have neither a time, a tenant, a name nor parents.
        self.is_plain = not (
            options.delay
            or options.eta_ms is not None
            or options.tenant
            or options.name
            or options.unique
            or options.expires is not None
            or options.depends_on
        )
        if options.on_conflict == "replace" and (not (options.name or options.unique) or options.depends_on):
            raise OptionError("on_conflict='replace' needs a name= or unique=, and is not for jobs with depends_on")
        if options.on_conflict == "add" and (not options.name or options.unique not in ("", "until_done")):
            raise OptionError("on_conflict='add' needs a name=, which is held until the job is done")
        for parent in options.depends_on:
            if parent.app != engine.name:
                raise OptionError(
                    f"depends_on: job {parent.id} is one of the app {parent.app!r}, not of {engine.name!r}"
                )
        if options.soft_timeout and own is None and options.timeout and options.soft_timeout >= options.timeout:
            raise OptionError(
                f"soft_timeout: it comes before the hard timeout, which is {options.timeout:g} s for {target}; "
                f"found {options.soft_timeout:g} s"
            )
        if unknown := self.signature.unknown(options.secret):
            near = did_you_mean(unknown[0], inspect.signature(func).parameters)
            raise OptionError(
                f"secret: {target} has no argument {unknown[0]!r:.60}{near}; "
                "for a name inside an argument use the setting `mask`"
            )
        functools.update_wrapper(self, func)
        if own is None:
            engine.part(Dependencies).check(func, target, is_async=self.is_async)

    @functools.cached_property
    def attempt(self) -> Callable[..., Any]:
        """What workers call: the function, with what the app puts around it."""
        return attempt_of(self)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self.func(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.target}>"

    def using(self, **options: Any) -> Task[P, R]:
        """The same task with other options for the jobs made from it: delay, eta, priority, name, unique, …"""
        new = changed(self.options, options, refuse=TASK_ONLY)
        return type(self)(self.engine, self.func, self.target, new, signature=self.signature, own=self._own)

    # enqueue
    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Put a job on the queue. When this returns, the server has it."""
        if self.engine.middleware:
            return self._through([(args, kwargs)], lambda fragments: [self._put(fragments[0])])[0]
        if self.engine.telemetry is not None:
            with self._making() as span:
                id, plan = self._new(args, kwargs)
                span.set_attribute("messaging.message.id", id)
                return self._job(id, self.engine.run(plan))
        id, plan = self._new(args, kwargs)
        return self._job(id, self.engine.run(plan))

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """`enqueue` for async code."""
        if self.engine.middleware:
            return (await self._athrough([(args, kwargs)], self._aput))[0]
        if self.engine.telemetry is not None:
            with self._making() as span:
                id, plan = self._new(args, kwargs)
                span.set_attribute("messaging.message.id", id)
                return self._job(id, await self.engine.client.arun(plan))
        id, plan = self._new(args, kwargs)
        return self._job(id, await self.engine.client.arun(plan))

    delay = enqueue  # the word people coming from Celery type

    def enqueue_many(self, calls: Iterable[tuple[tuple[Any, ...], dict[str, Any]]]) -> list[Job[R]]:
        """Put many jobs on the queue, 300 per round trip, in order: `[((7,), {"cents": 990}), …]`."""
        if self.engine.middleware:
            return self._through(calls, self._put_many)
        return self._put_many(self._encoded(calls))

    def _put_many(self, fragments: list[bytes]) -> list[Job[R]]:
        ids = self.engine.new_id.many(len(fragments))
        with making(self.engine.telemetry, "enqueue", self.options.queue, **self._batch(ids)):
            return self._jobs(ids, self.engine.run(self._store_many(ids, fragments)))

    async def aenqueue_many(self, calls: Iterable[tuple[tuple[Any, ...], dict[str, Any]]]) -> list[Job[R]]:
        """`enqueue_many` for async code. Other tasks of the event loop go on, however many jobs there are."""
        if self.engine.middleware:
            return await self._athrough(calls, self._aput_many)
        return await self._aput_many(await _in_turns(self._encoded, self._checked(calls)))

    async def _aput_many(self, fragments: list[bytes]) -> list[Job[R]]:
        ids = self.engine.new_id.many(len(fragments))
        with making(self.engine.telemetry, "enqueue", self.options.queue, **self._batch(ids)):
            owners = await self.engine.arun(self._store_many(ids, fragments))
            return await _in_turns(lambda pairs: self._jobs(*zip(*pairs, strict=True)), zip(ids, owners, strict=True))

    # where the app has middleware
    def _through(self, calls: Iterable[Any], put: Callable[[list[bytes]], list[Job[R]]]) -> list[Job[R]]:
        made = [call_of(self, *_row(self.target, row)) for row in self._checked(calls)]
        return list(through(self.engine, made, lambda: put([self._headed(call) for call in made])))

    async def _athrough(
        self, calls: Iterable[Any], put: Callable[[list[bytes]], Awaitable[list[Job[R]]]]
    ) -> list[Job[R]]:
        made = [call_of(self, *_row(self.target, row)) for row in self._checked(calls)]

        async def act() -> list[Job[R]]:
            return await put(await _in_turns(lambda some: [self._headed(call) for call in some], made))

        return list(await athrough(self.engine, made, act))

    def _headed(self, call: Call) -> bytes:
        fragment = self.signature.encode(tuple(call.args), call.kwargs, limit=self.engine.settings.max_payload)
        return headed(fragment, call.headers, what=self.target)

    def _put(self, fragment: bytes) -> Job[R]:
        with self._making_one() as span:
            id, plan = self._new((), {}, fragment)
            _name(span, id)
            return self._job(id, self.engine.run(plan))

    async def _aput(self, fragments: list[bytes]) -> list[Job[R]]:
        with self._making_one() as span:
            id, plan = self._new((), {}, fragments[0])
            _name(span, id)
            return [self._job(id, await self.engine.client.arun(plan))]

    def _making_one(self) -> AbstractContextManager[Span | None]:
        return making(self.engine.telemetry, "enqueue", self.options.queue, **{"relevo.task": self.target})

    def _making(self) -> AbstractContextManager[Span]:
        assert self.engine.telemetry is not None
        return self.engine.telemetry.making("enqueue", self.options.queue, {"relevo.task": self.target})

    def _batch(self, ids: list[str]) -> dict[str, Any]:
        return {"relevo.task": self.target, "messaging.batch.message_count": len(ids)}

    @property
    def is_postponed(self) -> bool:
        """Whether a job that is enqueued now is sent later, such as when a transaction commits."""
        return False

    def postpones(self, plan: Plan[Any]) -> bool:  # noqa: ARG002
        """Whether a workflow that begins with this task is stored later, such as when a transaction commits."""
        return False

    # steps of workflows
    @overload
    def s(self: Receiver[A, Q, T], /, *args: Q.args, **kwargs: Q.kwargs) -> Step[A, T]: ...
    @overload
    def s(self, /, *args: P.args, **kwargs: P.kwargs) -> Step[Never, R]: ...

    def s(self, /, *args: Any, **kwargs: Any) -> Step[Any, Any]:
        """This call as a step of a workflow. Behind another step it gets that one's result as its first argument.

        >>> chain(price.s(7), discount.s(percent=10)).enqueue()      # discount(price(7), percent=10)  # doctest: +SKIP
        """
        return Step(self, args, kwargs)

    def si(self, /, *args: P.args, **kwargs: P.kwargs) -> Step[object, R]:
        """The same with all its arguments: it waits for what is before it and takes nothing from there."""
        return Step(self, args, kwargs, False)

    def _keys(self) -> QueueKeys:
        return self.engine.keys_of(self.options.queue)  # asked each time: the app may be bound elsewhere for a test

    def _job(self, id: str, owner: str | int) -> Job[R]:
        known = id if isinstance(owner, int) else owner
        return Job(self.engine, known, self.options.queue, self.signature.decode_result, known == id)

    def _jobs(self, ids: Sequence[str], owners: Sequence[str]) -> list[Job[R]]:
        engine, queue, decode = self.engine, self.options.queue, self.signature.decode_result
        if owners is ids:  # all are new
            return [Job(engine, id, queue, decode) for id in ids]
        return [Job(engine, owner, queue, decode, owner == id) for id, owner in zip(ids, owners, strict=True)]

    def _new(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], fragment: bytes | None = None
    ) -> tuple[str, Plan[Any]]:
        if fragment is None:
            fragment = self.signature.encode(args, kwargs, limit=self.engine.settings.max_payload)
        id = self.engine.new_id()
        if self.is_plain and self.engine.is_listed(self.options.queue):
            keys = self._keys()
            body = self.body(fragment) if self.engine.telemetry is None else self._traced(fragment)
            if keys.signer is not None:
                body = keys.signer.signed("job", id, body)
            return id, push_plain(keys, [(id, body)], self.options.priority, self.engine.lease_ms)
        return id, self._new_slowly(id, fragment)

    def _new_slowly(self, id: str, fragment: bytes) -> Steps[str]:
        yield from self.engine.list_queue(self.options.queue)
        now_ms = 0
        if self.options.expires is not None:
            now_ms = yield from self.engine.now_ms()
        owners = yield from self._push([self._new_job(id, fragment, now_ms)])
        return (yield from self._replaced(id, owners[0], fragment, now_ms))

    def _replaced(self, id: str, owner: str, fragment: bytes, now_ms: int) -> Steps[str]:
        """Where the name is taken and on_conflict="replace": the job that has it, with what the new one would be."""
        for _ in range(TRIES):
            if owner == id or self.options.on_conflict != "replace":
                return owner
            code: str = yield change(self._keys(), self._new_job(owner, fragment, now_ms), fresh=True)
            if code in ("changed", "started"):
                return owner
            before = owner  # it has ended: the name may be free
            (owner,) = yield from self._push([self._new_job(id, fragment, now_ms)])
            if owner == before:  # it holds the name for a time
                return owner
        return owner

    def _push(self, jobs: list[NewJob]) -> Steps[list[str]]:
        if not self.options.depends_on:
            return (yield from push(self._keys(), jobs, self.engine.lease_ms))
        parents: dict[str, list[tuple[str, Policy]]] = {}
        for parent in self.options.depends_on:
            parents.setdefault(parent.queue, []).append((parent.id, _POLICIES[parent.when_it_fails]))
        return (
            yield from push_dependents(
                self.engine.keys_of,
                self.options.queue,
                jobs,
                parents,
                self.engine.settings.dead_max,
                self.engine.name_abroad(self.options.queue),
            )
        )

    def _checked(self, calls: Iterable[Any]) -> Iterable[Any]:
        if not isinstance(calls, Iterable):
            raise PayloadError(f"{self.target}: enqueue_many takes a list of (args, kwargs) pairs, found {calls!r:.80}")
        return calls

    def _encoded(self, calls: Iterable[Any]) -> list[bytes]:
        """The arguments of each call, checked and encoded."""
        encode, limit = self.signature.encode, self.engine.settings.max_payload
        fragments: list[bytes] = []
        for call in self._checked(calls):
            try:
                args, kwargs = call
            except (TypeError, ValueError):
                args = kwargs = None
            if not (isinstance(args, _ROW) and isinstance(kwargs, dict)):
                raise _no_row(self.target, call)
            fragments.append(encode(tuple(args), kwargs, limit=limit))
        return fragments

    def _store_many(self, ids: list[str], fragments: list[bytes]) -> Steps[list[str]]:
        yield from self.engine.list_queue(self.options.queue)
        parts = chunks(map(len, fragments))
        if self.is_plain:
            keys, priority, lease_ms = self._keys(), self.options.priority, self.engine.lease_ms
            yield Ahead(
                push_plain(keys, self._plain_jobs(keys, ids[part], fragments[part]), priority, lease_ms)
                for part in parts
            )
            return ids
        now_ms = 0
        if self.options.expires is not None:
            now_ms = yield from self.engine.now_ms()
        made = (map(self._new_job, ids[part], fragments[part], repeat(now_ms)) for part in parts)
        if self.options.on_conflict == "replace":
            owners = yield from push_parts(self._keys(), map(list, made), self.engine.lease_ms)
            for i, (id, fragment) in enumerate(zip(ids, fragments, strict=True)):
                owners[i] = yield from self._replaced(id, owners[i], fragment, now_ms)
            return owners
        if self.options.depends_on:
            return (yield from self._push([job for some in made for job in some]))
        return (yield from push_parts(self._keys(), map(list, made), self.engine.lease_ms))

    def _plain_jobs(
        self, keys: QueueKeys, ids: Sequence[str], fragments: Sequence[bytes]
    ) -> Iterable[tuple[str, bytes]]:
        bodies = map(self.body if self.engine.telemetry is None else self._traced, fragments)
        if keys.signer is not None:
            bodies = map(partial(keys.signer.signed, "job"), ids, bodies)
        return zip(ids, bodies, strict=True)

    def body(self, fragment: bytes) -> bytes:
        """The body of a job with these encoded arguments."""
        return self._head_and_comma + fragment + b"}" if fragment else self._head + b"}"

    def _traced(self, fragment: bytes) -> bytes:
        """The same, with the span it is made in."""
        assert self.engine.telemetry is not None
        head = self._head + self.engine.telemetry.field()
        return head + b"," + fragment + b"}" if fragment else head + b"}"

    def member_body(self, id: str, fragment: bytes, extra: bytes) -> bytes:
        """The body of a plain member of a workflow."""
        head = (
            self._head + extra if self.engine.telemetry is None else self._head + extra + self.engine.telemetry.field()
        )
        body = head + b"," + fragment + b"}" if fragment else head + b"}"
        signer = self._keys().signer
        return body if signer is None else signer.signed("job", id, body)

    def member(self, id: str, fragment: bytes, now_ms: int, extra: bytes, needs: str, edges: str) -> NewJob:
        """A job of a workflow. Its name is only a label: one that is found instead of a new one cannot be a member."""
        # Its gate is opened by its maker, at once; other parents may take their time.
        waits = needs != "" and int(needs.split(" ")[1]) > needs.startswith("g")
        job = self._new_job(id, fragment, now_ms, extra, waits)
        return msgspec.structs.replace(job, name="", scope="", needs=needs, edges=edges)

    def _new_job(self, id: str, fragment: bytes, now_ms: int, extra: bytes = b"", waits: bool = False) -> NewJob:
        options = self.options
        head = self._head + extra
        if self.engine.telemetry is not None:
            head += self.engine.telemetry.field()
        name: str = options.name
        scope: str | float = options.unique or ("until_done" if name else "")
        if scope == "no":
            name = scope = ""  # it is in the body, and no job holds it
        elif options.on_conflict == "add":
            scope = "add"
        elif scope and not name:
            name = f"{self.target}:{hashlib.sha256(arguments_of(fragment)).hexdigest()[:24]}"
            head += b',"n":' + write(name)
        if options.expires is not None:
            head += b',"x":%d' % (now_ms + round(options.expires * 1000))
        when = ""
        later_ms = None
        if options.eta_ms is not None:
            when = str(options.eta_ms)
            later_ms = max(1, options.eta_ms - made_ms(id))
        elif options.delay:
            # One more: the server's clock is cut to whole milliseconds, and a delay may be longer but not shorter.
            when = f"+{round(options.delay * 1000) + 1}"
            later_ms = round(options.delay * 1000)
        if options.depends_on or waits:
            later_ms = 0
        if later_ms is not None:
            head += b',"d":%d' % later_ms
        body = head + b"," + fragment + b"}" if fragment else head + b"}"
        signer = self._keys().signer
        return NewJob(
            id,
            options.priority,
            body if signer is None else signer.signed("job", id, body),
            when,
            options.tenant,
            options.weight,
            name,
            str(max(1, round(scope * 1000))) if isinstance(scope, float) else scope,
            needs_of(len(options.depends_on), self.failure_ms, gated=True) if options.depends_on else "",
        )

    @property
    def failure_ms(self) -> int:
        """How long the record of a job is kept that does not go well."""
        return max(1, round(self.options.failure_ttl * 1000))

    def _envelope_head(self) -> bytes:
        """The body up to the arguments: the same for all jobs made from this task with these options."""
        now, own = self.options, self._own
        carried = {name: getattr(now, name) for name in _CARRIED_IF_CHANGED if getattr(now, name) != getattr(own, name)}
        if now.weight != 1.0:  # msgspec leaves out a float only if it is the very default, and most jobs have none
            carried["weight"] = now.weight
        if now.timeout != own.timeout:
            carried["timeout"] = now.timeout or 0.0  # 0: no limit
        if "on_failure" in carried and carried["on_failure"] is None:
            raise OptionError("on_failure: a handler cannot be taken away by using(); give another one")
        return write(
            Envelope(
                self.target,
                priority=now.priority,
                tenant=now.tenant,
                name=now.name,
                tags=now.tags,
                **carried,
            )
        )[:-1]


def _row(target: str, call: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    try:
        args, kwargs = call
    except (TypeError, ValueError):
        args = kwargs = None
    if not (isinstance(args, _ROW) and isinstance(kwargs, dict)):
        raise _no_row(target, call)
    return tuple(args), kwargs


def _no_row(target: str, found: Any) -> PayloadError:
    return PayloadError(
        f"{target}: enqueue_many takes (args, kwargs) pairs such as ((7,), {{'cents': 990}}), found {found!r:.80}"
    )


def _name(span: Span | None, id: str) -> None:
    if span is not None:
        span.set_attribute("messaging.message.id", id)


async def _in_turns(make: Callable[[list[T]], list[V]], rows: Iterable[T]) -> list[V]:
    """What is made from all rows, as many at a time as one call stores, with a turn of the event loop in between."""
    made: list[V] = []
    left = iter(rows)
    while part := list(islice(left, CHUNK)):
        made += make(part)
        await asyncio.sleep(0)
    return made
