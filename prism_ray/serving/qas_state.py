"""What the QAS actor says of itself to people: plain values, JSON-ready. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prism_ray.dispatch.seat import Seat
from prism_ray.model import Ticket


def replica_state(
    seat: Seat,
    model: str,
    dispatched: int,
    queued_tokens: int,
    engine_counts: Mapping[str, float],
) -> dict[str, Any]:
    """One replica's books; what only its snapshot knows is None (or 0) until the first one.

    ``queued_tokens``: its share of what waits. ``engine``: what its engine counts, by its own names.
    """
    snapshot = seat.snapshot
    prompt_tokens = snapshot.prompt_tokens_total if snapshot else 0
    cached_tokens = snapshot.cached_tokens_total if snapshot else 0
    return {
        "replica": seat.replica,
        "incarnation": seat.incarnation,
        "model": model,
        "residency": str(seat.residency.state),
        "draining": seat.draining,
        "credit_tokens": seat.credit_tokens,
        "queued_tokens": queued_tokens,
        "sent": len(seat.sent),
        "not_prefilled": seat.unprefilled_requests,
        "foreign": seat.foreign_requests,
        "dispatched": dispatched,
        "resident_tokens": seat.residency.tokens,
        "pool_tokens": seat.capacity.pool_tokens,
        "pool_used_tokens": snapshot.pool_used_tokens if snapshot else None,
        "running": snapshot.running if snapshot else None,
        "engine_waiting": snapshot.waiting if snapshot else None,
        "prompt_tokens_total": prompt_tokens,
        "cached_tokens_total": cached_tokens,
        "hit_rate": cached_tokens / prompt_tokens if prompt_tokens else None,
        "evicted_tokens_total": snapshot.evicted_tokens_total if snapshot else 0,
        "prefill_tokens_per_s": snapshot.prefill_tokens_per_s if snapshot else 0.0,
        "engine": dict(engine_counts),
    }


def oldest_wait_s(waiting: Iterable[Ticket], now_s: float) -> float | None:
    """How long the oldest of them has waited; None if nobody does."""
    oldest_s = min((ticket.arrival_s for ticket in waiting), default=None)
    return None if oldest_s is None else now_s - oldest_s


def one_tenant_asks(window: Mapping[str, Any]) -> bool:
    """Whether ``window`` (``FairScheduler.describe``) is one tenant's: of several it has only totals.

    What was decided for single requests is then nothing to show either.
    """
    return "tenants" not in window
