"""PrismConfig: what a deployment can be told, typed and frozen. Nothing here starts anything.

Unknown keys, wrong types and contradictions are refused with the dotted path of each. Whether the
named policies exist and take their parameters is checked where they are built (and by
``prism-ray validate``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ValidationError, model_validator

from prism_ray.config_checks import (
    BUILTIN_TOKENIZER,
    FIXED_ENGINE_ARGS,
    OWNED_ENGINE_ARGS,
    contradictions,
    with_retention,
)
from prism_ray.config_errors import ConfigError, from_validation
from prism_ray.config_files import default_preset, extended, presets, read_mapping, resolve
from prism_ray.config_sections import (
    AuthConfig,
    AutoscalingConfig,
    EngineConfig,
    IngressConfig,
    LimitsConfig,
    ModelConfig,
    PlacementConfig,
    RedisConfig,
    ReplicaConfig,
    RetentionConfig,
    SchedulerConfig,
    Section,
    SegmentsConfig,
    TenantsConfig,
)

__all__ = [
    "BUILTIN_TOKENIZER",
    "FIXED_ENGINE_ARGS",
    "OWNED_ENGINE_ARGS",
    "AuthConfig",
    "AutoscalingConfig",
    "ConfigError",
    "EngineConfig",
    "IngressConfig",
    "LimitsConfig",
    "ModelConfig",
    "PlacementConfig",
    "PrismConfig",
    "RedisConfig",
    "ReplicaConfig",
    "RetentionConfig",
    "SchedulerConfig",
    "SegmentsConfig",
    "TenantsConfig",
    "default_preset",
    "presets",
    "resolve",
]

SGLANG_MAX_PREFILL_TOKENS = 16_384
"""SGLang's own default of ``max_prefill_tokens``."""

CONTROL_CALLS = 64
"""Concurrent health checks, snapshots, event polls and admin calls of one deployment replica."""


class PrismConfig(Section):
    """Everything a deployment can be told."""

    model: ModelConfig
    engine: EngineConfig = EngineConfig()
    replicas: ReplicaConfig = ReplicaConfig()
    ingress: IngressConfig = IngressConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    retention: RetentionConfig = RetentionConfig()
    placement: PlacementConfig = PlacementConfig()
    segments: SegmentsConfig = SegmentsConfig()
    limits: LimitsConfig = LimitsConfig()
    auth: AuthConfig = AuthConfig()
    tenants: TenantsConfig = TenantsConfig()
    redis: RedisConfig = RedisConfig()

    @model_validator(mode="before")
    @classmethod
    def _retention_goes_with_the_policy(cls, data: Any) -> Any:
        """Hints of one policy mean nothing to the retention of another."""
        return with_retention(data) if isinstance(data, Mapping) else data

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = contradictions(self)
        if problems:
            raise ConfigError(problems)
        return self

    @classmethod
    def load(cls, source: str | Path | Mapping[str, Any] | PrismConfig) -> PrismConfig:
        """A config from a preset's name, a YAML or JSON file, or a mapping.

        A mapping may say ``extends: PRESET`` and give only what differs. Raises ConfigError.
        """
        if isinstance(source, PrismConfig):
            return source
        data = source if isinstance(source, Mapping) else read_mapping(resolve(source))
        try:
            return cls.model_validate(extended(data))
        except ValidationError as error:
            raise from_validation(error, cls) from None

    def to_json(self) -> str:
        """JSON that ``from_json`` reads back to an equal config."""
        return self.model_dump_json()

    @classmethod
    def from_json(cls, text: str) -> PrismConfig:
        """Inverse of ``to_json``; raises ConfigError."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise from_validation(error, cls) from None

    @property
    def device(self) -> Literal["cuda", "cpu"]:
        """The engine's device with `auto` decided by the replicas' share of GPUs."""
        if self.engine.device == "auto":
            return "cuda" if self.replicas.num_gpus > 0 else "cpu"
        return self.engine.device

    @property
    def prefill_ahead_bound_tokens(self) -> int:
        """Credit ceiling as far as the config knows it (the engine's own chunk size may differ)."""
        if self.replicas.prefill_ahead_tokens is not None:
            return self.replicas.prefill_ahead_tokens
        simulated = self.engine.kind == "simulated"
        args = self.engine.simulated if simulated else self.engine.args
        chunk = "chunked_prefill_tokens" if simulated else "chunked_prefill_size"
        for name in (chunk, "max_prefill_tokens"):
            tokens = args.get(name)
            if isinstance(tokens, int) and tokens > 0:
                return 2 * tokens
        return 2 * SGLANG_MAX_PREFILL_TOKENS

    @property
    def replica_max_ongoing_requests(self) -> int:
        """Serve's cap for a replica, so high that only our own credit ever binds.

        Running requests, and those sent but not prefilled: each has at least one uncached token
        and the ceiling may be overdrawn once. Plus room for control calls.
        """
        return self.replicas.max_running + self.prefill_ahead_bound_tokens + 1 + CONTROL_CALLS

    @property
    def ingress_max_ongoing_requests(self) -> int:
        """Serve's cap for an ingress: it may hold every waiting and running request by itself.

        As many again may be on their way to a 429, which must come from us and not from a queue.
        """
        sent = self.replicas.most * self.replica_max_ongoing_requests
        return 2 * self.limits.queue_requests + sent + CONTROL_CALLS
