"""Llama models of random weights with a real tokenizer: the real engine, at a fraction of the cost.

What they generate means nothing; how long a prefill takes, what the KV cache holds and what it evicts
is as real as with trained weights. Writing needs torch and transformers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prism_ray.engine.checkpoints.directory import appearing, is_checkpoint
from prism_ray.registry import Registry


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """Sizes of a Llama; ``hidden`` and ``mlp`` are widths, ``context_length`` is in tokens."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    mlp: int
    context_length: int = 8192

    def __post_init__(self) -> None:
        if self.hidden % self.heads or (self.hidden // self.heads) % 2:
            raise ValueError(f"hidden {self.hidden} gives {self.heads} heads no even width")
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads cannot share {self.kv_heads} KV heads evenly")


shapes: Registry[LlamaShape] = Registry("random Llama shape")
TINY = shapes.register("tiny")(LlamaShape(layers=2, hidden=64, heads=4, kv_heads=2, mlp=192))
M19 = shapes.register("19m")(LlamaShape(layers=8, hidden=256, heads=4, kv_heads=2, mlp=768))


def write_random_llama(out: Path, shape: LlamaShape, tokenizer_from: Path, seed: int = 0) -> Path:
    """Write a float32 Llama of ``shape`` into ``out`` unless a model is there, and return ``out``.

    The tokenizer, its chat template and its special tokens are those of the model directory
    ``tokenizer_from``. The same arguments write the same weights. A directory that holds a model of
    another shape or seed raises ValueError.
    """
    recipe = _recipe(shape, seed)
    if is_checkpoint(out):
        if _recorded(out) != recipe:
            raise ValueError(f"{out} holds another model than {recipe}")
        return out
    with appearing(out) as scratch:
        _write(scratch, shape, tokenizer_from, seed)
        (scratch / _RECIPE_FILE).write_text(json.dumps(recipe, indent=2) + "\n")
    return out


_RECIPE_FILE = "random_llama.json"


def _recipe(shape: LlamaShape, seed: int) -> dict[str, int]:
    sizes = {name: getattr(shape, name) for name in LlamaShape.__dataclass_fields__}
    return {**sizes, "seed": seed}


def _recorded(out: Path) -> Any:
    path = out / _RECIPE_FILE
    return json.loads(path.read_text()) if path.is_file() else None


def _write(out: Path, shape: LlamaShape, tokenizer_from: Path, seed: int) -> None:
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer: Any = AutoTokenizer.from_pretrained(str(tokenizer_from))
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.context_length,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):  # the caller's generator is none of our business
        torch.manual_seed(seed)
        model: Any = LlamaForCausalLM(config)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
