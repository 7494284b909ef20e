"""Serve's autoscaling: what replicas tell it, and the policy that its controller asks. Decides nothing.

The decision is ``scaling.replicas_wanted``. Serve ships this module by value to its controller, so it
must hold no state of its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from prism_ray.config_sections import ReplicaConfig
from prism_ray.scaling import ReplicaWork, Targets, WorkMeter, replicas_wanted

REPORTS_IN_WINDOW = 5
"""How often a replica reports to Serve's controller within the window that is averaged over."""

_PREFIX = "prism_"


def work_stats(
    meter: WorkMeter,
    queued_prompt_tokens: Sequence[int | None],
    *,
    owed_tokens: int,
    taken_slots: float,
    now_s: float,
) -> dict[str, float]:
    """A replica's autoscaling statistics, as Serve takes them; empty while a QAS did not say enough.

    ``queued_prompt_tokens``: its share of what waits at each QAS that it knows. ``taken_slots``: of
    those that it has, as a share.
    """
    if not queued_prompt_tokens or None in queued_prompt_tokens:
        return {}
    queued = sum(tokens or 0 for tokens in queued_prompt_tokens)
    return as_stats(
        ReplicaWork(
            queued_tokens=meter.uncached_share * queued,
            owed_tokens=owed_tokens,
            prefill_tokens_per_s=meter.tokens_per_s,
            busy=min(1.0, max(taken_slots, meter.busy_share(now_s))),
        )
    )


def as_stats(work: ReplicaWork) -> dict[str, float]:
    """By the names that the policy looks for."""
    return {_PREFIX + name: float(value) for name, value in asdict(work).items()}


class QueuedWork:
    """Serve's policy for the replicas: the targets' other half are Serve's own delays."""

    def __init__(self, **targets: Any) -> None:
        self._targets = Targets(**targets)

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        metrics = context.aggregated_metrics or {}
        replicas = [_work_of(replica, metrics) for replica in context.running_replicas]
        return replicas_wanted(replicas, context.target_num_replicas, self._targets), {}


def _work_of(replica: Any, metrics: dict[str, dict[Any, float]]) -> ReplicaWork | None:
    """The window's means of what a replica said; None before it said anything."""
    values = {}
    for name in ReplicaWork.__dataclass_fields__:
        value = metrics.get(_PREFIX + name, {}).get(replica)
        if value is None:
            return None
        values[name] = value
    return ReplicaWork(**values)


def replica_count(replicas: ReplicaConfig) -> dict[str, Any]:
    """Serve's options for the number of replicas: a number, or its autoscaling with our policy."""
    scaling = replicas.autoscaling
    if scaling is None:
        return {"num_replicas": replicas.count}
    policy = AutoscalingPolicy(
        policy_function="prism_ray.serving.autoscaling:QueuedWork",
        policy_kwargs={
            "least": replicas.count,
            "most": scaling.max_count,
            "work_high_s": scaling.work_high_s,
            "work_low_s": scaling.work_low_s,
            "busy_high": scaling.busy_high,
            "busy_low": scaling.busy_low,
        },
    )
    with warnings.catch_warnings():
        # Deprecated for a variable that this Ray does not read yet: replicas push this often.
        warnings.filterwarnings("ignore", message="The `metrics_interval_s` field")
        config = AutoscalingConfig(
            min_replicas=replicas.count,
            max_replicas=scaling.max_count,
            upscale_delay_s=scaling.up_delay_s,
            downscale_delay_s=scaling.down_delay_s,
            look_back_period_s=scaling.window_s,
            metrics_interval_s=scaling.window_s / REPORTS_IN_WINDOW,
            policy=policy,
        )
    return {"autoscaling_config": config}
