"""What settings say against each other, and what follows from other settings.

A single setting's type and range are its section's (``config_sections``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from prism_ray.config_errors import Problem
from prism_ray.config_sections import Params, ReplicaConfig
from prism_ray.policies import default_retention
from prism_ray.scheduling import POLICIES

if TYPE_CHECKING:
    from prism_ray.config import PrismConfig

BUILTIN_TOKENIZER = "builtin"
"""Tokenizer of the simulated engine that needs no files."""

OWNED_ENGINE_ARGS = {
    "model_path": "set model.path",
    "tokenizer_path": "set model.tokenizer",
    "served_model_name": "set model.name",
    "device": "set engine.device",
    "max_running_requests": "set replicas.max_running",
    "schedule_policy": "requests arrive in planned order: the engine runs fcfs",
    "enable_priority_scheduling": "priorities would undo the planned order",
    "radix_cache_backend": "set retention.policy",
    "radix_eviction_policy": "set retention.policy",
    "disable_radix_cache": "without a prefix cache there is nothing to schedule for",
    "host": "the engine has no HTTP listener; Ray Serve does",
    "port": "the engine has no HTTP listener; Ray Serve does",
}
"""SGLang arguments that follow from other settings, and what to do instead."""

FIXED_ENGINE_ARGS: Mapping[str, bool | int] = {
    "enable_cache_report": True,  # cached tokens in every usage
    "skip_server_warmup": True,
    "dp_size": 1,  # events come from one scheduler
    "tokenizer_worker_num": 1,
}
"""SGLang arguments that the engine adapter is built on: no other value works."""


def with_retention(data: Mapping[str, Any]) -> dict[str, Any]:
    """``data`` with the retention that its policy was made for, where it names a policy and none.

    A policy that does not exist changes nothing: who builds it says so.
    """
    scheduler, retention = data.get("scheduler"), data.get("retention", {})
    name = scheduler.get("policy") if isinstance(scheduler, Mapping) else None
    if not isinstance(name, str) or name not in POLICIES:
        return dict(data)
    if not isinstance(retention, Mapping) or "policy" in retention:
        return dict(data)
    return {**data, "retention": {**retention, "policy": default_retention(name)}}


def contradictions(config: PrismConfig) -> list[Problem]:
    """Every setting that does not go with another one."""
    found = []

    def refuse(wrong: bool, path: str, expected: str, value: object) -> None:
        if wrong:
            found.append(Problem(path, expected, value))

    model, engine, replicas, limits = config.model, config.engine, config.replicas, config.limits
    simulated = engine.kind == "simulated"
    refuse(
        model.path is None and not (simulated and model.tokenizer),
        "model.path",
        "a directory or Hugging Face id (the simulated engine also runs on model.tokenizer alone)",
        None,
    )
    refuse(
        model.tokenizer == BUILTIN_TOKENIZER and not simulated,
        "model.tokenizer",
        "the model's own tokenizer: builtin goes with engine.kind simulated",
        model.tokenizer,
    )
    refuse(
        replicas.most > 1 and config.placement.policy == "single",
        "placement.policy",
        f"round-robin, least-loaded or another policy for {replicas.most} replicas",
        "single",
    )
    found += _of_autoscaling(replicas)
    refuse(
        engine.device == "cuda" and replicas.num_gpus == 0,
        "replicas.num_gpus",
        "a share of a GPU for engine.device cuda",
        replicas.num_gpus,
    )
    refuse(
        (engine.device == "cpu" or simulated) and replicas.num_gpus > 0,
        "replicas.num_gpus",
        "0: this engine uses no GPU",
        replicas.num_gpus,
    )
    parallel = _gpus_of(engine.args)
    refuse(
        config.device == "cuda"
        and not simulated
        and parallel > 1
        and replicas.num_gpus != parallel,
        "replicas.num_gpus",
        f"{parallel}: engine.args spread one engine over that many GPUs of one machine",
        replicas.num_gpus,
    )
    refuse(
        config.redis.password_env is not None and config.redis.url is None,
        "redis.password_env",
        "redis.url as well: our own server generates its password",
        config.redis.password_env,
    )
    for name, instead in OWNED_ENGINE_ARGS.items():
        refuse(name in engine.args, f"engine.args.{name}", instead, engine.args.get(name))
    for name, fixed in FIXED_ENGINE_ARGS.items():
        given = engine.args.get(name, fixed)
        refuse(given != fixed, f"engine.args.{name}", f"{fixed!r}: the adapter needs it so", given)
    refuse(
        limits.default_max_tokens > limits.max_tokens,
        "limits.default_max_tokens",
        f"at most limits.max_tokens ({limits.max_tokens})",
        limits.default_max_tokens,
    )
    for cap in ("queue_requests", "queue_tokens"):
        own, of_all = getattr(config.tenants, cap), getattr(limits, cap)
        refuse(
            own is not None and own > of_all,
            f"tenants.{cap}",
            f"at most limits.{cap} ({of_all})",
            own,
        )
    refuse(
        limits.body_bytes > limits.queue_bytes,
        "limits.body_bytes",
        f"at most limits.queue_bytes ({limits.queue_bytes})",
        limits.body_bytes,
    )
    refuse(
        limits.qas_timeout_s >= limits.keepalive_after_s,
        "limits.qas_timeout_s",
        f"less than limits.keepalive_after_s ({limits.keepalive_after_s})",
        limits.qas_timeout_s,
    )
    return found


def _of_autoscaling(replicas: ReplicaConfig) -> Iterator[Problem]:
    scaling = replicas.autoscaling
    if scaling is None:
        return
    path = "replicas.autoscaling"
    if scaling.max_count < replicas.count:
        expected = f"at least replicas.count ({replicas.count})"
        yield Problem(f"{path}.max_count", expected, scaling.max_count)
    for low, high in (("work_low_s", "work_high_s"), ("busy_low", "busy_high")):
        value, limit = getattr(scaling, low), getattr(scaling, high)
        if value >= limit:
            yield Problem(f"{path}.{low}", f"less than {high} ({limit}), or it flaps", value)


def _gpus_of(engine_args: Params) -> int:
    """GPUs that one engine spreads over: tensor times pipeline parallelism."""
    sizes = [engine_args.get(name, 1) for name in ("tp_size", "pp_size")]
    return math.prod(size for size in sizes if isinstance(size, int))
