"""Trees of finished spans, hung below Serve's own with OpenTelemetry. Sets up no tracer, measures nothing.

Serve opens a span for each HTTP request once its tracing is configured (``tracing_config`` of a Serve
config, or RAY_SERVE_TRACING_EXPORTER_IMPORT_PATH) and decides which requests are sampled. Without
OpenTelemetry, without that, or for a request that is not sampled all of this does nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

try:
    from opentelemetry import trace
except ImportError:  # it comes with Ray Serve, which need not stay so
    HAVE_OPENTELEMETRY = False
else:
    HAVE_OPENTELEMETRY = True

if TYPE_CHECKING:
    from opentelemetry.context import Context

Value = str | bool | int | float | Sequence[int]


@dataclass(frozen=True, slots=True)
class Span:
    """A span that is over; times are seconds of this process's monotonic clock."""

    name: str
    start_s: float
    end_s: float
    attributes: Mapping[str, Value] = field(default_factory=dict)
    children: tuple[Span, ...] = ()
    failed: bool = False


def here() -> Context | None:
    """Where spans of this request belong; None if nobody records it."""
    if not HAVE_OPENTELEMETRY:
        return None
    current = trace.get_current_span()
    return trace.set_span_in_context(current) if current.is_recording() else None


def emit(tree: Span, parent: Context) -> None:
    """Hand a tree to the tracer that Serve set up; ``parent`` is from ``here``."""
    _emit(tree, parent, time.time_ns() - time.monotonic_ns())


def otlp_exporter() -> list[Any]:
    """For Serve's ``exporter_import_path``: batches over OTLP/HTTP, where OTEL_EXPORTER_OTLP_* say.

    Raises ImportError without the extra ``tracing``.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    return [BatchSpanProcessor(OTLPSpanExporter())]


def _emit(tree: Span, parent: Context, wall_offset_ns: int) -> None:
    def wall_ns(moment_s: float) -> int:
        return int(moment_s * 1e9) + wall_offset_ns

    span = trace.get_tracer("prism_ray").start_span(
        tree.name, parent, attributes=tree.attributes, start_time=wall_ns(tree.start_s)
    )
    if tree.failed:
        span.set_status(trace.StatusCode.ERROR)
    below = trace.set_span_in_context(span, parent)
    for child in tree.children:
        _emit(child, below, wall_offset_ns)
    span.end(wall_ns(tree.end_s))
