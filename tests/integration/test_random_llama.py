"""Random-weight Llamas: the same recipe gives the same model, and never another one's directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prism_ray.engine.checkpoints.random_llama import LlamaShape, shapes, write_random_llama

torch = pytest.importorskip("torch")
pytest.importorskip("sglang")

SMALL = LlamaShape(layers=1, hidden=16, heads=2, kv_heads=1, mlp=32, context_length=512)


def weights(model: Path) -> bytes:
    return (model / "model.safetensors").read_bytes()


def test_the_same_seed_writes_the_same_weights_and_another_seed_others(
    tmp_path: Path, random_tiny: Path
) -> None:
    first = write_random_llama(tmp_path / "first", SMALL, random_tiny, seed=3)
    torch.rand(5)  # what others drew meanwhile doesn't matter
    again = write_random_llama(tmp_path / "again", SMALL, random_tiny, seed=3)
    other = write_random_llama(tmp_path / "other", SMALL, random_tiny, seed=4)
    assert weights(first) == weights(again) != weights(other)


def test_writing_leaves_the_callers_random_generator_alone(
    tmp_path: Path, random_tiny: Path
) -> None:
    before = torch.get_rng_state()
    write_random_llama(tmp_path / "model", SMALL, random_tiny)
    assert torch.equal(before, torch.get_rng_state())


def test_a_directory_with_another_recipe_is_refused_and_the_same_one_kept(
    tmp_path: Path, random_tiny: Path
) -> None:
    out = write_random_llama(tmp_path / "model", SMALL, random_tiny, seed=1)
    written_at = (out / "model.safetensors").stat().st_mtime_ns
    write_random_llama(out, SMALL, random_tiny, seed=1)
    assert (out / "model.safetensors").stat().st_mtime_ns == written_at
    for shape, seed in ((SMALL, 2), (shapes["tiny"], 1)):
        with pytest.raises(ValueError, match="another model"):
            write_random_llama(out, shape, random_tiny, seed=seed)


def test_the_model_has_the_shape_and_the_tokenizer_it_was_asked_for(
    tmp_path: Path, random_tiny: Path
) -> None:
    from transformers import AutoTokenizer

    out = write_random_llama(tmp_path / "model", SMALL, random_tiny)
    config = json.loads((out / "config.json").read_text())
    assert (config["num_hidden_layers"], config["hidden_size"]) == (1, 16)
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (2, 1)
    assert (config["intermediate_size"], config["max_position_embeddings"]) == (32, 512)
    text = "Rules:\n\n  12. two"
    mine, source = (AutoTokenizer.from_pretrained(str(path)) for path in (out, random_tiny))
    assert mine.encode(text) == source.encode(text)
    assert config["vocab_size"] == len(source)
    assert mine.chat_template == source.chat_template
