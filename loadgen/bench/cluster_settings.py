"""What ``bench cluster`` compares and under which conditions: placements, traces, pools, rates."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loadgen.bench.retention_settings import OUTPUT_TOKENS, Setting
from loadgen.traces import Trace, TraceRequest
from prism_ray.model import NO_GAP, Segment, SegmentKind, Skeleton

DOCUMENTS = 60
DOCUMENT_TOKENS = 512
SYSTEM_TOKENS = 64
QUESTION_TOKENS = 48
ZIPF = 0.9


@dataclass(frozen=True, slots=True)
class Placed:
    """An arm: a placement with its options."""

    placement: str
    options: Mapping[str, Any] = field(default_factory=dict)


ARMS = {
    "round-robin": Placed("round-robin"),
    "cache-aware": Placed("cache-aware"),
    # Sixteen requests in flight never differ by the router's own 64.
    "cache-aware-8": Placed(
        "cache-aware", {"balance_abs_threshold": 8, "balance_rel_threshold": 1.1}
    ),
    "least-loaded": Placed("least-loaded"),
    "e2": Placed("e2"),
    "e2-no-spill": Placed("e2", {"spill": False}),
    "e2+": Placed("e2+"),
}
DEFAULT_ARMS = ("round-robin", "cache-aware", "cache-aware-8", "e2", "e2+")


class Documents(Setting):
    """Retrieval of whole documents: a request brings one of ``DOCUMENTS``, drawn by Zipf's law.

    So most of a prompt is shared with others or with none, as in Preble's workloads, in a size that
    the small model serves a few of in a second.
    """

    def _own(self, seed: int) -> Trace:
        rng = random.Random(f"documents-{seed}")
        weights = [1 / rank**ZIPF for rank in range(1, DOCUMENTS + 1)]
        system = Segment(b"system", SYSTEM_TOKENS, SegmentKind.SYSTEM)
        requests = []
        for number in range(self.requests):
            (drawn,) = rng.choices(range(DOCUMENTS), weights)
            document = Segment(f"{seed}/{drawn}".encode(), DOCUMENT_TOKENS, SegmentKind.DOCUMENT)
            skeleton = Skeleton(system, (document,), (NO_GAP,), QUESTION_TOKENS)
            requests.append(TraceRequest(f"r{number}", skeleton, OUTPUT_TOKENS))
        return Trace(f"one of {DOCUMENTS} documents", seed, {}, tuple(requests))


SETTINGS = {
    setting.name: setting
    for setting in (
        Documents("documents", pool_share=0.5, rate=3.0, requests=110),
        Setting(
            "multihop-rag",
            pool_share=0.5,
            trace="multihop-rag",
            trace_options={"output_tokens": OUTPUT_TOKENS},
            rate=2.5,
            requests=120,
        ),
        Setting("hot-set", rate=3.0, requests=120),
    )
}
"""Traces with ``pool_share`` of their unique tokens in *each* replica's pool, and a rate for both."""
