"""Traces for OpenTelemetry: a span where a job or a message is made, and one where it is run, linked to the first.

Off unless the setting `otel` is on and `opentelemetry-api` is installed: else `engine.telemetry`
is None. The context of the span travels in the job's body as a W3C `traceparent`. A run is
the root of a trace of its own with a link to where the job was made, as the conventions for messaging advise: one may
be made long before it is run, and run several times. Spans made inside a job are children of its run.

How spans leave the process is the program's business: it sets up the SDK, and without one these calls do nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import metadata
from typing import TYPE_CHECKING, Any

from relevo.text.masking import masked_text

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

log = logging.getLogger("relevo")

SYSTEM = "relevo"
_NO_SPAN: AbstractContextManager[None] = nullcontext()


class Telemetry:
    """Makes spans. There is one in an app whose traces are switched on."""

    def __init__(self) -> None:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation import tracecontext

        self._trace = trace
        self._context = context
        self._format = tracecontext.TraceContextTextMapPropagator()
        self._tracer: Tracer | None = None

    @property
    def tracer(self) -> Tracer:
        """That of relevo, by whatever SDK is set up when it is first needed."""
        if self._tracer is None:
            self._tracer = self._trace.get_tracer(SYSTEM, _version())
        return self._tracer

    # where jobs are made
    @contextmanager
    def making(self, operation: str, destination: str, about: Mapping[str, Any]) -> Iterator[Span]:
        """A span around making a job or sending a message; errors are recorded."""
        attributes = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": operation,
            "messaging.operation.type": "send",
            "messaging.destination.name": destination,
            **about,
        }
        with self.tracer.start_as_current_span(
            f"{operation} {destination}",
            kind=self._trace.SpanKind.PRODUCER,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as error:
                kind = type(error)
                name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
                span.record_exception(error)
                self._fail(span, name, str(error))
                raise

    def here(self) -> tuple[str, str]:
        """The `traceparent` and `tracestate` of the span that is current here; '': there is none."""
        carrier: dict[str, str] = {}
        self._format.inject(carrier)
        return carrier.get("traceparent", ""), carrier.get("tracestate", "")

    def field(self) -> bytes:
        """What the body of a job says of the span it is made in, to be put behind its head."""
        parent, _ = self.here()
        return b',"tp":"' + parent.encode() + b'"' if parent else b""

    # where they are run
    def begin(self, destination: str, traceparent: str, tracestate: str, about: Mapping[str, Any]) -> Span:
        """A span for one run, linked to where the job was made."""
        made = self._trace.get_current_span(self._read(traceparent, tracestate)).get_span_context()
        return self.tracer.start_span(
            f"process {destination}",
            context=self._context.Context(),
            kind=self._trace.SpanKind.CONSUMER,
            attributes={
                "messaging.system": SYSTEM,
                "messaging.operation.name": "process",
                "messaging.operation.type": "process",
                "messaging.destination.name": destination,
                **about,
            },
            links=[self._trace.Link(made)] if made.is_valid else None,
        )

    def enter(self, span: Span) -> Any:
        """Make a span the current one, here and in what is called from here; gives what `leave` wants."""
        return self._context.attach(self._trace.set_span_in_context(span))

    def enter_from_afar(self, traceparent: str) -> Any:
        """The same for a span of another process."""
        return self._context.attach(self._read(traceparent, ""))

    def leave(self, token: Any) -> None:
        """Make the span current again that was so before."""
        self._context.detach(token)

    def carried(self, span: Span) -> str:
        """The `traceparent` of a span."""
        carrier: dict[str, str] = {}
        self._format.inject(carrier, context=self._trace.set_span_in_context(span))
        return carrier.get("traceparent", "")

    def end(self, span: Span, outcome: str, error: str = "", message: str = "", traceback: str = "") -> None:
        """A run ended: `outcome` in a word, and its error if there was one."""
        span.set_attribute("relevo.outcome", outcome)
        if error:
            message, trace = masked_text(message), masked_text(traceback)
            about = {"exception.type": error, "exception.message": message, "exception.stacktrace": trace}
            span.add_event("exception", {name: text for name, text in about.items() if text})
            self._fail(span, error, message)
        span.end()

    def _fail(self, span: Span, error: str, message: str) -> None:
        span.set_attribute("error.type", error)
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, message[:200] or error))

    def _read(self, traceparent: str, tracestate: str) -> Context:
        carrier = {"traceparent": traceparent, "tracestate": tracestate}
        return self._format.extract({name: text for name, text in carrier.items() if text}, self._context.Context())


def _version() -> str | None:
    try:
        return metadata.version(SYSTEM)
    except metadata.PackageNotFoundError:  # run from its sources
        return None


def telemetry(is_on: bool) -> Telemetry | None:
    """What makes spans; None: they are switched off, or cannot be made."""
    if not is_on:
        return None
    try:
        return Telemetry()
    except ImportError:
        log.warning('otel is on, but OpenTelemetry is not installed: pip install "relevo[otel]". Nothing is traced')
        return None


def making(
    telemetry: Telemetry | None, operation: str, destination: str, **about: Any
) -> AbstractContextManager[Span | None]:
    """A span around making a job, where traces are on."""
    return _NO_SPAN if telemetry is None else telemetry.making(operation, destination, about)
