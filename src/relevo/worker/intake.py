"""From a claimed row to a run, or to what else becomes of it: cancelled, too late, unreadable, unknown here."""

from __future__ import annotations

import importlib
import time
from typing import Any

from relevo.engine.admission import refusal
from relevo.engine.carried import TAKES
from relevo.engine.context import JobContext
from relevo.engine.engine import Engine
from relevo.engine.job import NO_KWARGS, Attempt, Envelope
from relevo.engine.message import Headers
from relevo.engine.outcome import CancelAsked, Happened, Refused, Route, TooLate, UnknownTarget, Unrunnable
from relevo.engine.settle import Held
from relevo.engine.task import Task
from relevo.errors import PayloadError
from relevo.text.names import is_bus_name
from relevo.worker.capture import Capture
from relevo.worker.missing_tasks import MissingTasks
from relevo.worker.offers import Offer, offer_of
from relevo.worker.run import Origin, Run


class Intake:
    """Knows which targets may run here: registered tasks, and plain functions of allowed modules. Nothing else."""

    def __init__(self, engine: Engine, worker: str) -> None:
        self._engine = engine
        self._worker = worker
        self._is_signed = bool(engine.keyring)
        self._log_max = engine.settings.log_max
        self._functions: dict[str, Task[..., Any]] = {}
        self._offers: dict[str, Offer] = {}
        self._missing = MissingTasks(engine)

    def offer(self, queue: str) -> Offer:
        """What this worker knows of a queue."""
        if queue not in self._offers:
            self._offers[queue] = offer_of(self._engine, queue, self._worker)
        return self._offers[queue]

    def run_of(self, origin: Origin, held: Held, now_ms: int) -> Run | Happened:
        """The run, or what happened instead."""
        queue, envelope = origin.queue, held.envelope
        if envelope is None:
            return Unrunnable("unreadable", self._attempt("unreadable", now_ms, "the body is not an envelope"))
        if (envelope.headers is not None or self._is_signed) and envelope.takes not in TAKES:
            refused = refusal(self._engine, queue, held, now_ms)
            if refused is not None:
                return refused
        if held.cancel_asked:
            return CancelAsked()
        if envelope.expires_ms is not None and now_ms > envelope.expires_ms:
            return TooLate()
        task = self._engine.task_for(queue, envelope.target)
        if task is None and is_bus_name(queue):  # nothing but its actions can be called through a service's queue
            text = f"no handler for {envelope.target!r:.100} on {queue}"
            return self._unknown(envelope.target, self._route(queue, envelope), now_ms, text)
        if task is None:
            found = self._function(envelope.target, self._route(queue, envelope), now_ms)
            if not isinstance(found, Task):
                return found
            task = found
        try:
            args, kwargs = task.signature.decode(
                envelope.args, None if envelope.kwargs is NO_KWARGS else envelope.kwargs
            )
        except PayloadError as error:
            attempt = self._attempt("refused", now_ms, str(error), "PayloadError")
            return Refused("bad_arguments", attempt, self._route(queue, envelope))
        history, options = held.story.attempts, task.options
        context = JobContext(  # by position: for every job
            held.id,
            queue,
            envelope.target,
            len(history) + 1,
            history,
            self._worker,
            envelope.name,
            envelope.tenant,
            envelope.tags,
            retries_left=(options.retries if envelope.retries is None else envelope.retries) - held.story.spent,
            _engine=self._engine,
            _token=held.token,
        )
        limit, ttl = envelope.timeout, envelope.result_ttl  # what the caller chose, else what the task says
        kept = options.result_ttl if ttl is None else ttl
        run = Run(
            origin,
            held,
            task,
            args,
            kwargs,
            context,
            Capture(self._log_max),
            (options.timeout or 0.0) if limit is None else limit,
            kept,
        )
        if envelope.flow:
            context.flow = envelope.flow
            run.carries = envelope.takes != "" or (envelope.passes and kept <= 0)
        if envelope.headers is not None:
            self._tell_message(run, envelope.headers, envelope, now_ms)
        if envelope.job_headers is not None:
            context._headers = envelope.job_headers
        if envelope.tick_ms is not None:
            context.tick_ms = envelope.tick_ms
        return run

    @staticmethod
    def _tell_message(run: Run, headers: Headers, envelope: Envelope, now_ms: int) -> None:
        context = run.context
        context.message_headers = headers
        run.is_asked = headers.intent == "request"
        # What it took from beside it ends with it, and a callback may take its record.
        run.carries = envelope.takes != "" or (envelope.passes and not run.is_asked)
        if envelope.expires_ms is not None:
            context.deadline_ms = envelope.expires_ms
        if run.is_asked and envelope.expires_ms is not None:
            left = max(0.001, (envelope.expires_ms - now_ms) / 1000)
            context.deadline_at = time.monotonic() + left
            run.limit = min(run.limit or left, left)  # the caller waits no longer

    def _route(self, queue: str, envelope: Envelope) -> Route:
        return self.offer(queue).route_of(envelope.target)

    def _function(self, target: str, route: Route, now_ms: int) -> Task[..., Any] | Happened:
        known = self._functions.get(target)
        if known is not None:
            return known
        module, colon, name = target.partition(":")
        if not colon:
            return self._unknown(target, route, now_ms, self._engine.unknown_task(target))
        # A plain function named by its import path. Only allowed modules are ever imported: a forged job naming
        # os:system must find nothing to call.
        if not self._engine.allows(module) or not name.isidentifier():
            text = f"{target!r:.100} is not in a module this app allows"
            return Refused("forbidden_target", self._attempt("refused", now_ms, text), route)
        try:
            func = getattr(importlib.import_module(module), name)
            if not callable(func) or getattr(func, "__module__", "") != module:
                raise AttributeError(f"{name} is not a function of {module}")
        except (ImportError, AttributeError) as error:
            return self._unknown(target, route, now_ms, f"{target}: {error}")
        task = self._functions[target] = self._engine.function(func)
        return task

    def _unknown(self, target: str, route: Route, now_ms: int, why: str) -> UnknownTarget:
        self._missing.note(target, why)
        return UnknownTarget(self._attempt("unknown_task", now_ms, why), route)

    def _attempt(self, how: str, now_ms: int, message: str, error: str = "") -> Attempt:
        return Attempt(how, self._worker, now_ms, now_ms, error, message[:2000])
