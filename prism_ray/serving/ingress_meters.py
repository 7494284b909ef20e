"""What an ingress counts and traces of its requests. Hands counts on to the QAS actor; renders nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

from prism_ray.model import Decision
from prism_ray.serving.errors import ApiError
from prism_ray.serving.inference import Inference
from prism_ray.serving.loops import keep_running
from prism_ray.serving.meters import Counts, Meters
from prism_ray.serving.ray_mirror import RayMirror
from prism_ray.serving.request_spans import spans_of
from prism_ray.telemetry import tracing

HAND_OVER_S = 1.0

DIRECT_POLICY = "direct"
"""Whose decisions an ingress's own are, where they are counted by policy."""

Payloads = AsyncGenerator[tuple[dict[str, Any], ...], None]


class IngressMeters:
    """``send`` takes what is new, at most once in ``HAND_OVER_S``; it must not block.

    It says whether it took it: what no QAS took is kept for the next one. Ray's metrics have it at once.

    ``router_waits`` says how often Serve's router held calls back since it was asked last.
    """

    def __init__(
        self, send: Callable[[Counts], bool], router_waits: Callable[[], int] = lambda: 0
    ) -> None:
        self._meters = Meters()
        self._router_waits = router_waits
        self._send = send
        self._ray = RayMirror()
        self._owed = Counts()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = keep_running(self._loop, "prism-meters")

    def refused(self, status: int) -> None:
        """A request that was refused at the door."""
        self._meters.add("prism_requests_total", 1, "none", str(status))

    def decided(self, decision: Decision) -> None:
        """A decision that this ingress took by itself: QAS counts its own."""
        self._meters.add("prism_decisions_total", 1, DIRECT_POLICY, decision.reason)
        lane = str(decision.lane)
        self._meters.observe("prism_queue_wait_seconds", decision.queue_s, lane)

    async def watched(self, inference: Inference, payloads: Payloads) -> Payloads:
        """``payloads`` as they are; counts how the request ended, and traces it where Serve does."""
        outcome, traced = "client_gone", tracing.here()
        try:
            async for items in payloads:
                yield items
            outcome = "ok"
        except ApiError as error:
            outcome = str(error.status)
            raise
        except Exception:
            outcome = "500"
            raise
        finally:
            await payloads.aclose()
            outcome = "client_stall" if inference.stalled else outcome
            self._ended(inference, outcome)
            if traced is not None:
                tracing.emit(spans_of(inference, outcome, time.monotonic()), traced)

    def take(self) -> Counts:
        """What no QAS has, passed on to Ray's metrics once; the caller hands it to the QAS actor."""
        if waits := self._router_waits():
            self._meters.add("prism_router_waits_total", waits)
        news = self._meters.take()
        self._ray.pass_on(news)
        owed, self._owed = self._owed, Counts()
        owed.add(news)
        return owed

    def keep(self, counts: Counts) -> None:
        """``counts`` were taken, and there was no QAS to have them."""
        self._owed.add(counts)

    def _ended(self, inference: Inference, outcome: str) -> None:
        lane = "none" if inference.decision is None else str(inference.decision.lane)
        self._meters.add("prism_requests_total", 1, lane, outcome)
        if outcome.startswith("client_"):
            self._meters.add("prism_aborts_total", 1, outcome)
        elif outcome == "408":
            self._meters.add("prism_aborts_total", 1, "deadline")
        if inference.answered is not None:
            self._meters.add("prism_output_tokens_total", inference.answered.output_tokens)
        spacing_s = inference.inter_token_s()
        if spacing_s is not None:
            self._meters.observe("prism_inter_token_seconds", spacing_s, lane)
        terms = inference.ttft_terms()
        if terms is not None:
            self._meters.observe("prism_ttft_seconds", max(0.0, terms["total_s"]), lane)
            for term in ("queue_wait", "prefill", "first_token"):
                name = f"prism_ttft_{term}_seconds"
                self._meters.observe(name, max(0.0, terms[f"{term}_s"]), lane)

    async def _loop(self) -> None:
        while True:
            await asyncio.sleep(HAND_OVER_S)
            news = self.take()
            if (news.counters or news.histograms) and not self._send(news):
                self.keep(news)
