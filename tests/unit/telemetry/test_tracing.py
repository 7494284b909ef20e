"""Trees of spans below Serve's own, and nothing where nobody records."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from prism_ray.telemetry import tracing
from prism_ray.telemetry.tracing import Span


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """What is exported by a provider that stands where Serve puts its own."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


def exported(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def test_a_tree_hangs_below_the_span_that_was_current(exporter: InMemorySpanExporter) -> None:
    now = time.monotonic()
    leaf = Span("leaf", now - 2, now - 1, {"n": 3})
    tree = Span("root", now - 3, now, {"why": "so"}, (leaf,), failed=True)
    with trace.get_tracer("serve").start_as_current_span("serve"):
        parent = tracing.here()
    assert parent is not None
    tracing.emit(tree, parent)
    spans = exported(exporter)
    serve, root, below = (spans[name] for name in ("serve", "root", "leaf"))
    assert root.parent is not None
    assert serve.context is not None
    assert root.context is not None
    assert root.parent.span_id == serve.context.span_id
    assert below.parent is not None
    assert below.parent.span_id == root.context.span_id
    assert root.context.trace_id == serve.context.trace_id
    assert root.attributes == {"why": "so"}
    assert root.status.status_code is trace.StatusCode.ERROR
    assert below.status.status_code is trace.StatusCode.UNSET


def test_times_of_the_monotonic_clock_come_out_as_times_of_day(
    exporter: InMemorySpanExporter,
) -> None:
    before_ns, now = time.time_ns(), time.monotonic()
    with trace.get_tracer("serve").start_as_current_span("serve"):
        parent = tracing.here()
        assert parent is not None
        tracing.emit(Span("root", now - 3, now - 1), parent)
    root = exported(exporter)["root"]
    assert root.start_time is not None
    assert root.end_time is not None
    assert root.end_time - root.start_time == pytest.approx(2e9, abs=1e4)
    assert root.start_time == pytest.approx(before_ns - 3e9, abs=1e8)


def test_nothing_is_recorded_outside_of_a_span() -> None:
    assert tracing.here() is None


def test_nothing_is_recorded_of_a_request_that_is_not_sampled() -> None:
    tracer = TracerProvider(sampler=ALWAYS_OFF).get_tracer("serve")
    with tracer.start_as_current_span("serve"):
        assert tracing.here() is None


def test_without_opentelemetry_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    spec = importlib.util.spec_from_file_location("bare_tracing", tracing.__file__)
    assert spec is not None
    assert spec.loader is not None
    bare = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, bare)
    spec.loader.exec_module(bare)
    assert not bare.HAVE_OPENTELEMETRY
    assert bare.here() is None


def test_the_exporter_is_one_that_serve_takes() -> None:
    otlp = pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    from ray.serve._private.tracing_utils import _load_span_processors

    (processor,) = _load_span_processors("prism_ray.telemetry.tracing:otlp_exporter", "unused")
    assert isinstance(processor, BatchSpanProcessor)
    assert isinstance(processor.span_exporter, otlp.OTLPSpanExporter)
    processor.shutdown()
