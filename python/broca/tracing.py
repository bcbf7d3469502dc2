"""Spans and trace headers, when the application has set OpenTelemetry up.

Only the API package is used, and only when the application has installed a tracer provider: without one nothing
is imported, no header is sent, and nothing is paid. Nobody calls this module but the two shells:

* ``span = start_send(…)`` when a turn begins, its ``headers`` on the command, ``span.end(error)`` at the end;
* for a span of each message: ``traces_rounds()`` when the session is opened turns the engine's hooks on,
  ``span.sending(round)`` gives the headers of the message about to leave, ``span.received(round)`` ends its span;
* ``span.start_tool(…)`` beside each tool that runs;
* ``headers()`` on every other request.

A span is current only while a tool runs, never between two steps of a turn.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Optional, TypeVar

from ._version import __version__
from .errors import InvalidArgumentError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

T = TypeVar("T")

Headers = tuple[Optional[str], Optional[str]]
"""``traceparent`` and ``tracestate``. Baggage is never sent."""

_SCOPE = "bae.client"
_NONE: Headers = (None, None)

_known: tuple[Any, Tracer] | None = None


def _tracer() -> Tracer | None:
    """The tracer, if the application has installed a provider."""
    global _known
    # Whoever has installed one has imported this.
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
        return None
    known = _known
    if known is None or known[0] is not provider:
        known = _known = (provider, provider.get_tracer(_SCOPE, __version__))
    return known[1]


def traces_rounds() -> bool:
    """Whether each message of a turn shall have a span of its own."""
    return _tracer() is not None


def headers() -> Headers:
    """The headers of the current span, for a request that has no span of its own."""
    return _NONE if _tracer() is None else _headers_of(None)


class SendSpan:
    """The spans of one turn: one for each message that leaves. Without tracing it holds the caller's headers."""

    __slots__ = ("_parent", "_round", "_session_id", "_span", "_tracer", "headers")

    def __init__(self, session_id: str, headers: Headers, tracer: Tracer | None) -> None:
        self.headers = headers
        self._session_id = session_id
        self._tracer = tracer
        self._round = -1
        self._span: Span | None = None
        self._parent: Context | None = None
        if tracer is not None:
            self._parent = _context_of(headers)
            self.headers = self.sending(0)

    def sending(self, round: int) -> Headers:
        """A message is about to leave; its headers."""
        if self._tracer is None:
            return self.headers
        if round != self._round:
            from opentelemetry.trace import SpanKind

            self._end_span(None)
            self._round = round
            self._span = self._tracer.start_span(
                "bae.client.send",
                context=self._parent,
                kind=SpanKind.CLIENT,
                attributes={
                    "bae.session.id": self._session_id,
                    "bae.rpc.method": "session.sendMessage",
                    "bae.client.iteration": round,
                },
            )
        return _headers_of(self._span)

    def received(self, round: int) -> None:
        """The answer to that message came. The tools it asks for are still its children."""
        if self._span is not None and round == self._round:
            self._span.end()

    def start_tool(self, name: str, tool_use_id: str = "") -> ToolSpan:
        """A tool begins to run."""
        if self._tracer is None or self._span is None:
            return _NO_TOOL_SPAN
        from opentelemetry.trace import set_span_in_context

        span = self._tracer.start_span(
            "bae.client.tool",
            context=set_span_in_context(self._span, self._parent),
            attributes={"bae.tool.name": name, "bae.tool.dispatch": "client"},
        )
        return ToolSpan(span)

    def end(self, error: BaseException | None) -> None:
        """The turn is over, or nobody looks at it any more. A second call does nothing."""
        if self._tracer is not None:
            self._end_span(error)
            self._tracer = None

    def _end_span(self, error: BaseException | None) -> None:
        span = self._span
        if span is not None and span.is_recording():
            if error is not None:
                _mark(span, "send failed")
            span.end()


class ToolSpan:
    """The span of one tool that runs."""

    __slots__ = ("_span",)

    def __init__(self, span: Span | None) -> None:
        self._span = span

    def __bool__(self) -> bool:
        """Whether anything is traced."""
        return self._span is not None

    @contextmanager
    def active(self) -> Iterator[None]:
        """Makes it the current span, for what the tool itself traces."""
        if self._span is None:
            yield
            return
        from opentelemetry.trace import use_span

        with use_span(self._span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
            yield

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Calls the function with the span as the current one."""
        if self._span is None:
            return function(*arguments)
        with self.active():
            return function(*arguments)

    def end(self, failure: str | None) -> None:
        """The tool has come to its end; `failure` says that it failed. Its words stay here: they may hold anything."""
        if self._span is not None:
            if failure is not None:
                _mark(self._span, "tool handler failed")
            self._span.end()


_NO_TOOL_SPAN = ToolSpan(None)


def start_send(session_id: str, traceparent: str | None = None, tracestate: str | None = None) -> SendSpan:
    """A turn begins. The parent of its spans is what the caller names, or the span that is current now."""
    for name, header in (("traceparent", traceparent), ("tracestate", tracestate)):
        if header is not None and not (isinstance(header, str) and header.isascii()):
            raise InvalidArgumentError(f"{name} is a text of ASCII characters")
    return SendSpan(session_id, (traceparent, tracestate), _tracer())


def _mark(span: Span, description: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR, description))


def _context_of(headers: Headers) -> Context:
    from opentelemetry.context import get_current
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {name: value for name, value in zip(("traceparent", "tracestate"), headers) if value is not None}
    context = get_current()
    return TraceContextTextMapPropagator().extract(carrier, context) if carrier else context


def _headers_of(span: Span | None) -> Headers:
    """The headers of this span, or of the current one."""
    from opentelemetry.trace import set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    context = None if span is None else set_span_in_context(span)
    TraceContextTextMapPropagator().inject(carrier, context)
    return carrier.get("traceparent"), carrier.get("tracestate")
