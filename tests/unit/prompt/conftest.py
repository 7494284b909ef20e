"""Models to test prompts with: the builtin tokenizer, real ones where they are, and stand-ins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from prism_ray.prompt import PromptLimits, PromptTokenizer, Splitter, load_tokenizer

from .stand_in_models import (
    BUILTIN,
    DATA,
    MODELS,
    PARTS_TEMPLATE,
    sentencepiece_like,
    with_template,
)

NAMES = ("builtin", "llama2", "parts", "qwen3", "smollm2")


@pytest.fixture(scope="session")
def tokenizer_named(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], PromptTokenizer]:
    loaded: dict[str, PromptTokenizer] = {}
    makers: dict[str, Callable[[Path], Path]] = {
        "builtin": lambda _: BUILTIN,
        "llama2": sentencepiece_like,
        "parts": lambda tmp: with_template(tmp, PARTS_TEMPLATE),
        "qwen3": lambda _: DATA / "tokenizer-qwen3",
        "smollm2": lambda _: MODELS / "SmolLM2-135M-Instruct",
    }

    def get(name: str) -> PromptTokenizer:
        if name not in loaded:
            path = makers[name](tmp_path_factory.mktemp(name))
            if not (path / "tokenizer.json").is_file():
                pytest.skip(f"no tokenizer {name} here")
            loaded[name] = load_tokenizer(path)
        return loaded[name]

    return get


@pytest.fixture(params=NAMES)
def tokenizer(
    request: pytest.FixtureRequest, tokenizer_named: Callable[[str], PromptTokenizer]
) -> PromptTokenizer:
    return tokenizer_named(request.param)


@pytest.fixture
def splitter(tokenizer: PromptTokenizer) -> Splitter:
    return Splitter(tokenizer, PromptLimits(automatic_min_tokens=6), b"secret")


@pytest.fixture
def builtin(tokenizer_named: Callable[[str], PromptTokenizer]) -> Splitter:
    limits = PromptLimits(automatic_min_tokens=6)
    return Splitter(tokenizer_named("builtin"), limits, b"secret")
