"""Spans and trace headers of the asynchronous client, with OpenTelemetry's SDK."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from async_service import Service, calling

import broca
from broca import tracing

sdk = pytest.importorskip("opentelemetry.sdk.trace")


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What was traced. The provider is global in OpenTelemetry, so it is put in its place for one test."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    monkeypatch.setattr(tracing, "_known", None)
    yield exporter
    provider.shutdown()


def test_every_message_and_every_tool_has_a_span(spans: Any) -> None:
    from opentelemetry import trace

    inside: list[int] = []

    @broca.tool
    async def on_loop() -> str:
        inside.append(trace.get_current_span().get_span_context().span_id)
        return "a"

    @broca.tool
    def on_thread() -> str:
        inside.append(trace.get_current_span().get_span_context().span_id)
        raise ValueError("secret")

    async def main() -> None:
        async with broca.AsyncClient(service.url, "k") as client:
            session = await client.open(tools=[on_loop, on_thread])
            kinds = set()
            async with session.send("go") as turn:
                async for step in turn:
                    assert not trace.get_current_span().get_span_context().is_valid
                    kinds.add(type(step))
            assert broca.Sending not in kinds and broca.Received not in kinds and broca.Done in kinds

    with Service(calling(("c1", "on_loop", {}), ("c2", "on_thread", {}))) as service:
        asyncio.run(main())
        headers = [asked.header("traceparent") for asked in service.calls("session.sendMessage")]

    finished = spans.get_finished_spans()
    sends = [span for span in finished if span.name == "bae.client.send"]
    tools = {span.attributes["bae.tool.name"]: span for span in finished if span.name == "bae.client.tool"}
    assert [span.attributes["bae.client.iteration"] for span in sends] == [0, 1]
    for header, span in zip(headers, sends):
        assert header is not None and f"{span.context.trace_id:032x}-{span.context.span_id:016x}" in header
    assert set(inside) == {span.context.span_id for span in tools.values()}
    assert all(span.parent.span_id == sends[0].context.span_id for span in tools.values())
    assert not tools["on_loop"].status.is_ok or tools["on_loop"].status.status_code.name == "UNSET"
    assert tools["on_thread"].status.status_code.name == "ERROR"
    assert "secret" not in str([span.to_json() for span in finished])


def test_a_turn_left_early_ends_its_span_wherever_it_is_left(spans: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        left = asyncio.Event()

        async def passed_on(session: broca.AsyncSession) -> AsyncIterator[broca.Step]:
            try:
                async with session.send("go") as turn:
                    async for step in turn:
                        yield step
            finally:
                left.set()

        async with broca.AsyncClient(service.url, "k") as client:
            session = await client.open()
            async with session.send("go") as turn:
                async for _ in turn:
                    break
            # A generator around it is finished by the loop, in another task and context.
            async for _ in passed_on(session):
                break
            gc.collect()
            await asyncio.wait_for(left.wait(), 20)

    with Service() as service:
        asyncio.run(main())
    assert [span.name for span in spans.get_finished_spans()] == ["bae.client.send"] * 2
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


def test_a_handler_and_spans_get_on_with_each_other(spans: Any) -> None:
    def on_sending(sending: broca.Sending) -> str:
        return "changed"

    async def main() -> None:
        async with broca.AsyncClient(service.url, "k") as client:
            session = await client.open(on_sending=on_sending)
            await session.ask("go")

    with Service() as service:
        asyncio.run(main())
        (sent,) = service.calls("session.sendMessage")
        assert sent.text == "changed" and sent.header("traceparent")
    assert [span.name for span in spans.get_finished_spans()] == ["bae.client.send"]


def test_without_a_provider_no_header_is_sent() -> None:
    async def main() -> None:
        async with broca.AsyncClient(service.url, "k") as client:
            await (await client.open()).ask("go")

    with Service() as service:
        asyncio.run(main())
        assert all(asked.header("traceparent") is None for asked in service.asked)
