"""From a PrismConfig to SGLang's ServerArgs fields, and the size of the KV pool they lead to.

Pure arithmetic and dictionaries; SGLang itself is asked in ``engine_check``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from prism_ray.config import PrismConfig
from prism_ray.engine.cpu.environment import cpu_engine_args
from prism_ray.engine.sglang_plugin import backend_of

GIB = 1 << 30
A800_GIB = 80.0
"""Nominal memory of the paper's GPU; the driver keeps under 1% of it."""

_BYTES = {"float16": 2, "half": 2, "bfloat16": 2, "float32": 4, "float": 4}


def server_args(config: PrismConfig, model_path: str, tokenizer: str) -> dict[str, Any]:
    """ServerArgs fields by name: ours, then the device's, then ``engine.args`` over both."""
    return {
        "model_path": model_path,
        "tokenizer_path": tokenizer,
        "served_model_name": config.model.name,
        "device": config.device,
        "schedule_policy": "fcfs",
        "radix_cache_backend": backend_of(config.retention.policy),
        "max_running_requests": config.replicas.max_running,
        "enable_cache_report": True,
        "sleep_on_idle": True,
        **(cpu_engine_args() if config.device == "cpu" else {}),
        **config.engine.args,
    }


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Dimensions of a decoder-only transformer with gated MLPs, as its config.json gives them."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied_embeddings: bool
    dtype: str

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelShape:
        """Read a Hugging Face ``config.json``; KeyError if it is not of this kind."""
        heads = config["num_attention_heads"]
        return cls(
            layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            intermediate=config["intermediate_size"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads", heads),
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            vocab=config["vocab_size"],
            tied_embeddings=config.get("tie_word_embeddings", False),
            dtype=config.get("dtype") or config.get("torch_dtype") or "float32",
        )

    @property
    def parameters(self) -> int:
        """Number of weights; norms and biases (below 0.1%) are left out."""
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        mlp = 3 * self.hidden * self.intermediate
        embeddings = self.vocab * self.hidden * (1 if self.tied_embeddings else 2)
        return self.layers * (attention + mlp) + embeddings

    def kv_bytes_per_token(self, dtype_bytes: int) -> int:
        """Keys and values of all layers for one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim * dtype_bytes


@dataclass(frozen=True, slots=True)
class PoolEstimate:
    """How many tokens of KV-cache fit, and what the number was made of."""

    tokens: int
    kv_bytes_per_token: int
    weight_bytes: int
    formula: str


def estimate_pool(
    shape: ModelShape, args: Mapping[str, Any], gpu_gib: float = A800_GIB
) -> PoolEstimate | None:
    """Tokens in the KV pool of resolved ServerArgs; None if nothing in them bounds it.

    SGLang's ``mem_fraction_static`` is (weights + KV pool) / GPU memory, so per GPU
    ``pool = (mem_fraction_static * gpu_bytes - weights) / kv_bytes_per_token``; with tensor
    parallelism every GPU holds its share of both. ``max_total_tokens`` caps the pool.
    """
    dtype = args.get("dtype") or "auto"
    weight_unit = _BYTES.get(shape.dtype if dtype == "auto" else dtype, 2)
    cache_dtype = args.get("kv_cache_dtype") or "auto"
    kv_unit = 1 if cache_dtype.startswith("fp8") else _BYTES.get(cache_dtype, weight_unit)
    weights, per_token = shape.parameters * weight_unit, shape.kv_bytes_per_token(kv_unit)
    cap = args.get("max_total_tokens")
    fraction = args.get("mem_fraction_static") if args.get("device") != "cpu" else None
    if fraction is None:
        return cap and PoolEstimate(cap, per_token, weights, f"max_total_tokens = {cap:,}")
    tp = args.get("tp_size") or 1
    fitting = int((fraction * gpu_gib * GIB - weights / tp) // (per_token / tp))
    tokens = max(0, fitting if cap is None else min(cap, fitting))
    formula = (
        f"({fraction} x {gpu_gib:g} GiB - {weights / tp / GIB:.1f} GiB of weights) "
        f"/ {per_token / tp / 1024:g} KiB a token"
    )
    return PoolEstimate(tokens, per_token, weights, formula)


def shipped_model_config(path: str) -> dict[str, Any] | None:
    """The published dimensions of a preset's model by its Hugging Face id, or None."""
    name = path.rsplit("/", 1)[-1].lower()
    file = resources.files("prism_ray") / "presets" / "models" / f"{name}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def model_config(path: str) -> dict[str, Any] | None:
    """``config.json`` of a model directory, or what is shipped for that id, or None."""
    local = Path(path) / "config.json"
    if local.is_file():
        return dict(json.loads(local.read_text(encoding="utf-8")))
    return shipped_model_config(path)
