"""The span tree of a request: what it shows of finished, refused and broken ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from ray.serve._private import tracing_utils

from prism_ray.model import Decision, Lane, Skeleton
from prism_ray.serving.errors import ApiError
from prism_ray.serving.inference import Inference
from prism_ray.serving.ingress_meters import IngressMeters
from prism_ray.serving.messages import Answered, Timings
from prism_ray.serving.request_spans import spans_of
from prism_ray.telemetry.tracing import Span

NAMES = ["prism.queue_wait", "prism.prefill", "prism.decode"]


def request(*, decided: bool = True, answered: bool = True) -> Inference:
    """Came at 10, decided at 12, sent at 12.5; prefill from 13 to 14; last token at 16."""
    prompt: Any = SimpleNamespace(skeleton=Skeleton(None, (), (), 70), labels=())
    inference = Inference("chat", {}, prompt, 8, b"", 10.0, stream=True)
    if decided:
        inference.decision = Decision(
            "a", 0, "e", "r1", 1, 0, (), Lane.HOT, 2.0, 30, reason="hot lane: bucket of 2, score 9"
        )
        inference.sent_s = 12.5
    if answered:
        inference.first_payload_s, inference.last_payload_s = 14.1, 16.0
        inference.answered = Answered(70, 20, 5, timings=Timings(0.5, 1.5, 1.6))
    return inference


def times(span: Span) -> tuple[float, float]:
    return span.start_s, span.end_s


def test_the_parts_of_a_request_follow_on_each_other() -> None:
    tree = spans_of(request(), "ok", 16.2)
    assert times(tree) == (10.0, 16.2)
    assert [child.name for child in tree.children] == NAMES
    assert [times(child) for child in tree.children] == [(10.0, 13.0), (13.0, 14.0), (14.0, 16.0)]
    (decision,) = tree.children[0].children
    assert times(decision) == (12.0, 12.5)
    assert decision.attributes["prism.reason"] == "hot lane: bucket of 2, score 9"
    assert decision.attributes["prism.replica"] == "r1"
    assert decision.attributes["prism.predicted_cached_tokens"] == 30
    assert tree.attributes["prism.outcome"] == "ok"
    assert tree.attributes["prism.cached_tokens"] == 20
    assert not tree.failed


def test_one_that_was_never_decided_only_waited() -> None:
    tree = spans_of(request(decided=False, answered=False), "429", 11.0)
    (wait,) = tree.children
    assert (wait.name, times(wait), wait.children) == ("prism.queue_wait", (10.0, 11.0), ())
    assert not tree.failed, "the client's doing"


def test_one_whose_engine_told_nothing_has_neither_prefill_nor_decode() -> None:
    tree = spans_of(request(answered=False), "500", 15.0)
    (wait,) = tree.children
    assert times(wait) == (10.0, 12.5)
    assert [span.name for span in wait.children] == ["prism.decision"]
    assert tree.failed


def test_clocks_that_disagree_never_turn_a_span_around() -> None:
    inference = request()
    inference.answered = Answered(70, 20, 5, timings=Timings(9.0, 1.5, 1.6))
    assert inference.decision is not None
    tree = spans_of(inference, "ok", 16.2)
    spans = [tree, *tree.children, *tree.children[0].children]
    assert all(10.0 <= span.start_s <= span.end_s <= 16.2 for span in spans)


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter


async def watch(inference: Inference, *, fails: bool = False) -> None:
    async def payloads() -> AsyncGenerator[tuple[dict[str, Any], ...], None]:
        yield ({},)
        if fails:
            raise ApiError(503, "no replica")

    meters = IngressMeters(lambda counts: True)
    async for _ in meters.watched(inference, payloads()):
        pass


async def test_an_ingress_traces_below_serves_span(
    exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing_utils, "_tracing_enabled", True)
    monkeypatch.setattr(tracing_utils, "_tracer", None)

    async def serve() -> None:
        # What a Serve replica does around each HTTP request, in a task of its own.
        with tracing_utils.TraceContextManager("replica_handle_request"):
            await asyncio.create_task(watch(request()))

    await asyncio.create_task(serve())
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert set(spans) == {"replica_handle_request", "prism.ingress", "prism.decision", *NAMES}
    root, above = spans["prism.ingress"], spans["replica_handle_request"]
    assert root.parent is not None
    assert above.context is not None
    assert root.parent.span_id == above.context.span_id
    assert (spans["prism.decision"].attributes or {})["prism.lane"] == "hot"


async def test_a_failure_is_traced_as_one(exporter: InMemorySpanExporter) -> None:
    with (
        pytest.raises(ApiError),
        trace.get_tracer("serve").start_as_current_span("serve"),
    ):
        await watch(request(answered=False), fails=True)
    (root,) = [span for span in exporter.get_finished_spans() if span.name == "prism.ingress"]
    assert (root.attributes or {})["prism.outcome"] == "503"
    assert root.status.status_code is trace.StatusCode.ERROR


async def test_without_serves_span_nothing_is_traced(exporter: InMemorySpanExporter) -> None:
    await watch(request())
    assert exporter.get_finished_spans() == ()
