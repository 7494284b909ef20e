"""A small data directory in the public data sets' own forms, with a tokenizer of one token a word."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from loadgen.traces.data import data_dir


@pytest.fixture
def real_data() -> Path:
    """The directory of the real data sets; the test is skipped where they are not."""
    if not (data_dir() / "tokenizer-qwen3").is_dir():
        pytest.skip("the data sets are not here")
    return data_dir()


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data directory with a tokenizer, and a cache of its own."""
    directory = tmp_path / "data"
    tokenizer = Tokenizer(WordLevel({"?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken("<|im_start|>"), AddedToken("<|im_end|>")])
    (directory / "tokenizer-qwen3").mkdir(parents=True)
    tokenizer.save(str(directory / "tokenizer-qwen3" / "tokenizer.json"))
    monkeypatch.setenv("PRISM_SHARED_DATA", str(directory))
    monkeypatch.setenv("PRISM_CACHE_DIR", str(tmp_path / "cache"))
    return directory


Put = Callable[[str, Any], Path]


@pytest.fixture
def put(data: Path) -> Put:
    """Writes a value at a path of the data directory: text as it is, else JSON, a line each if asked."""

    def write(name: str, value: Any) -> Path:
        path = data / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".jsonl.gz"):
            lines = "".join(json.dumps(row) + "\n" for row in value)
            path.write_bytes(gzip.compress(lines.encode()))
        elif name.endswith(".jsonl"):
            path.write_text("".join(json.dumps(row) + "\n" for row in value))
        else:
            path.write_text(value if isinstance(value, str) else json.dumps(value))
        return path

    return write
