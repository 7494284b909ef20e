"""States of an application as ``/prism/state`` tells them, made up."""

from __future__ import annotations

from typing import Any

from prism_ray.serving.meters import Meters
from prism_ray.serving.recent import Recent


def replica(number: int, **more: Any) -> dict[str, Any]:
    return {
        "replica": f"replica-{number:02}",
        "incarnation": f"life-{number}",
        "model": "m",
        "residency": ("exact", "degraded", "fallback")[number % 3],
        "draining": False,
        "credit_tokens": 12_345 + number,
        "queued_tokens": 60 * number,
        "sent": 7,
        "not_prefilled": 2,
        "foreign": 0,
        "dispatched": 900,
        "resident_tokens": 70_000,
        "pool_tokens": 400_000,
        "pool_used_tokens": 100_000,
        "running": 5,
        "engine_waiting": 0,
        "prompt_tokens_total": 1000,
        "cached_tokens_total": 640,
        "hit_rate": 0.64,
        "evicted_tokens_total": 0,
        "prefill_tokens_per_s": 8123.4,
        "engine": {},
    } | more


def decision(request_id: str = "ab12cd34", **more: Any) -> dict[str, Any]:
    return {
        "request_id": request_id,
        "attempt": 0,
        "replica": "replica-00",
        "plan_version": 4,
        "position": 1,
        "lane": "hot",
        "score": 12.5,
        "reason": "hot lane: bucket of 3, score 12; exploit to replica-00",
        "order": [1, 0],
        "queue_s": 0.25,
        "predicted_cached_tokens": 320,
        "age_s": 3.0,
        "placement": None,
    } | more


def recent() -> dict[str, Any]:
    """Two steps with answers, nothing between them."""
    meters, minutes = Meters(), Recent()
    for step in range(4):
        if step != 1:
            for _ in range(10):
                meters.observe("prism_ttft_seconds", 0.4 + step, "hot")
                meters.observe("prism_ttft_queue_wait_seconds", 0.1, "hot")
                meters.observe("prism_ttft_prefill_seconds", 0.2, "hot")
                meters.observe("prism_ttft_first_token_seconds", 0.1 + step, "hot")
                meters.observe("prism_queue_wait_seconds", 0.05, "hot")
            for _ in range(5):
                meters.observe("prism_queue_wait_seconds", 0.05, "cold")
            meters.take()
        minutes.look(meters.total, 15.0 * step)
    return minutes.describe(meters.total, 50.0)


def state(replicas: int = 1, **more: Any) -> dict[str, Any]:
    names = [f"replica-{number:02}" for number in range(replicas)]
    lane = {"dispatched": 900, "cold": 180, "hot": 720, "active": 7}
    return {
        "epoch": "0123456789abcdef",
        "policy": "qas",
        "placement": "e2",
        "waiting": 41,
        "oldest_wait_s": 12.5,
        "sent": 7 * replicas,
        "rounds": 1234,
        "window": {
            "policy": "qas",
            "queued": 41,
            "active": 7,
            "segments": [
                {
                    "segment": "00" * 16,
                    "label": "paris",
                    "active": 3,
                    "queued": 21,
                    "next": 11,
                    "priority": 55.5,
                },
                {
                    "segment": "ff" * 16,
                    "label": "",
                    "active": 0,
                    "queued": 2,
                    "next": 1,
                    "priority": 2.25,
                },
            ],
            "buckets": [{"signature": ["paris", "ff" * 16], "score": 77.0, "size": 9}],
            "fronts": [
                {
                    "front": ["paris", "rome"],
                    "size": 6,
                    "tokens": 800,
                    "saved_tokens": 4321,
                    "position": 2,
                }
            ],
            "lanes": dict.fromkeys(names, lane),
        },
        "replicas": [replica(number) for number in range(replicas)],
        "telemetry": {
            "store_up": True,
            "store_embedded": True,
            "store_dropped": 0,
            "decisions_total": 4321,
            "prompt_tokens_total": 10_000,
            "cached_tokens_total": 6_400,
            "predicted_cached_tokens_total": 6_500,
            "mispredicted_cached_tokens_total": 100,
        },
        "recent": recent(),
        "decisions": [decision()],
    } | more


def several_tenants() -> dict[str, Any]:
    window = {"policy": "qas", "queued": 41, "active": 7, "tenants": 3}
    return state(window=window, decisions=None)
