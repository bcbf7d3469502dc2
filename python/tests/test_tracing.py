"""Spans and trace headers: with OpenTelemetry's SDK in the process, and without."""

from __future__ import annotations

import asyncio
import os
import pathlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
from async_service import Answer, Asked, Service, calling
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import broca
from broca import errors, tracing

TESTS = pathlib.Path(__file__).resolve().parent


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """What an application does that traces; undone after the test."""
    provider = TracerProvider()
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter
    provider.shutdown()


@broca.tool
def work(fail: bool = False) -> str:
    """Works, in a span of its own."""
    with trace.get_tracer_provider().get_tracer("application").start_as_current_span("inside"):
        if fail:
            raise ValueError("secret")
        return "done"


@broca.tool
async def work_async() -> str:
    """Works on the loop."""
    with trace.get_tracer_provider().get_tracer("application").start_as_current_span("inside"):
        await asyncio.sleep(0)
        return "done"


def parent_of(header: str | None) -> tuple[int, int]:
    assert header is not None
    _, trace_id, span_id, _ = header.split("-")
    return int(trace_id, 16), int(span_id, 16)


def run(half: str, service: Service, tool: Any, message: str = "go") -> str:
    """A whole turn, in either half."""
    if half == "sync":
        with broca.Client(service.url, "key", environment={}) as client:
            return client.open(tools=[tool]).ask(message).text

    async def main() -> str:
        async with broca.AsyncClient(service.url, "key", environment={}) as client:
            session = await client.open(tools=[tool])
            return (await session.ask(message)).text

    return asyncio.run(main())


@pytest.mark.parametrize(("half", "tool"), [("sync", work), ("async", work), ("async", work_async)])
def test_each_message_has_a_span_and_each_tool_a_child(half: str, tool: Any, spans: InMemorySpanExporter) -> None:
    application = trace.get_tracer_provider().get_tracer("application")
    with Service(calling(("tu_1", tool.name, {}))) as service:
        with application.start_as_current_span("request") as request:
            assert run(half, service, tool) == "done"
        sent = service.calls("session.sendMessage")
        others = [asked for asked in service.asked if asked.method != "session.sendMessage"]
    found = spans.get_finished_spans()
    sends = sorted(
        (s for s in found if s.name == "bae.client.send"), key=lambda s: s.attributes["bae.client.iteration"]
    )
    assert [dict(s.attributes) for s in sends] == [
        {"bae.session.id": "ses_1", "bae.rpc.method": "session.sendMessage", "bae.client.iteration": n} for n in (0, 1)
    ]
    own = request.get_span_context()
    for span, asked in zip(sends, sent):
        assert span.kind is trace.SpanKind.CLIENT and span.parent.span_id == own.span_id
        assert span.instrumentation_scope.name == "bae.client"
        assert parent_of(asked.header("traceparent")) == (own.trace_id, span.context.span_id)
    [ran] = [s for s in found if s.name == "bae.client.tool"]
    assert dict(ran.attributes) == {"bae.tool.name": tool.name, "bae.tool.dispatch": "client"}
    assert ran.parent.span_id == sends[0].context.span_id
    [inside] = [s for s in found if s.name == "inside"]
    assert inside.parent.span_id == ran.context.span_id
    # Requests without a span of their own belong to the application's.
    for asked in others:
        assert parent_of(asked.header("traceparent")) == (own.trace_id, own.span_id)


@pytest.mark.parametrize("half", ["sync", "async"])
def test_failures_are_marked_with_a_fixed_text(half: str, spans: InMemorySpanExporter) -> None:
    def script(asked: Asked, answer: Answer) -> None:
        if asked.results:
            answer.terminal(error={"code": -32602, "message": "secret"})
        else:
            calling(("tu_1", "work", {"fail": True}))(asked, answer)

    with Service(script) as service, pytest.raises(errors.RpcError):
        run(half, service, work)
    found = {(s.name, s.attributes.get("bae.client.iteration")): s.status for s in spans.get_finished_spans()}
    assert found["bae.client.tool", None].description == "tool handler failed"
    assert found["bae.client.send", 1].description == "send failed"
    assert found["bae.client.send", 0].status_code is trace.StatusCode.UNSET
    kept = " ".join(span.to_json() for span in spans.get_finished_spans() if span.name.startswith("bae."))
    assert "secret" not in kept


def test_a_span_is_not_current_between_two_steps(spans: InMemorySpanExporter) -> None:
    with Service(calling(("tu_1", "work", {}))) as service, broca.Client(service.url, "k", environment={}) as client:
        turn = client.open(tools=[work]).send("go")
        for step in turn:
            assert trace.get_current_span() is trace.INVALID_SPAN
            assert not isinstance(step, (broca.Sending, broca.Received))


def test_a_turn_left_early_ends_its_span(spans: InMemorySpanExporter) -> None:
    with Service() as service, broca.Client(service.url, "key", environment={}) as client:
        with client.open().send("go") as turn:
            next(turn)
        assert [span.name for span in spans.get_finished_spans()] == ["bae.client.send"]


def test_baggage_never_leaves(spans: InMemorySpanExporter) -> None:
    token = context.attach(baggage.set_baggage("user", "somebody"))
    try:
        with Service() as service:
            run("sync", service, work)
            run("async", service, work)
            assert service.asked
            for asked in service.asked:
                assert asked.header("baggage") is None and "somebody" not in asked.head
    finally:
        context.detach(token)


def test_the_parent_may_be_named(spans: InMemorySpanExporter) -> None:
    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with Service() as service, broca.Client(service.url, "key", environment={}) as client:
        client.open().ask("go", traceparent=given, tracestate="vendor=1")
        [asked] = service.calls("session.sendMessage")
        [span] = spans.get_finished_spans()
        assert span.parent.span_id == 0xB7AD6B7169203331
        assert parent_of(asked.header("traceparent")) == (span.context.trace_id, span.context.span_id)
        assert asked.header("tracestate") == "vendor=1"


def test_without_a_provider_there_are_the_callers_headers_or_none() -> None:
    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert not tracing.traces_rounds() and tracing.headers() == (None, None)
    with Service(calling(("tu_1", "work", {}))) as service, broca.Client(service.url, "k", environment={}) as client:
        session = client.open(tools=[work])
        session.ask("go")
        assert all(asked.header("traceparent") is None for asked in service.asked)
        session.ask("go", traceparent=given)
        assert [a.header("traceparent") for a in service.calls("session.sendMessage")[2:]] == [given, given]


def test_without_a_provider_nothing_is_imported() -> None:
    program = """
        import sys
        import broca
        from async_service import Service
        with Service() as service, broca.Client(service.url, "key", environment={}) as client:
            client.open().ask("go")
        print(sorted(name for name in sys.modules if name.startswith("opentelemetry")))
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    said = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, env=environment, check=True
    )
    assert said.stdout.strip() == "[]"
