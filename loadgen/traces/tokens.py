"""Token counts of texts by Qwen3's tokenizer, remembered on disk: a count is paid for once.

What is kept are numbers under a digest of tokenizer and texts, never text; a file that cannot be
read or written only costs the counting.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from loadgen.traces.data import data_path, version

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER = "tokenizer-qwen3/tokenizer.json"


def cache_dir() -> Path:
    """``$PRISM_CACHE_DIR``, else ``prism_ray`` in the user's cache directory."""
    user = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("PRISM_CACHE_DIR") or Path(user) / "prism_ray")


def count_tokens(texts: Sequence[str]) -> list[int]:
    """Tokens of each text, without special tokens around it. Raises DataMissing without tokenizer."""
    path = data_path(TOKENIZER)
    digest = hashlib.blake2b(_file_digest(path, version(path)), digest_size=16)
    for text in texts:
        encoded = text.encode()
        digest.update(b"%d:" % len(encoded))
        digest.update(encoded)
    kept = cache_dir() / "token-counts" / f"{digest.hexdigest()}.npy"
    counts = _read(kept, len(texts))
    if counts is None:
        counts = [len(ids) for ids in encode(texts)]
        _write(kept, counts)
    return counts


def encode(texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text, without special tokens around it."""
    encodings = load_tokenizer().encode_batch_fast(list(texts), add_special_tokens=False)
    return [encoding.ids for encoding in encodings]


def load_tokenizer() -> Tokenizer:
    """Qwen3's tokenizer. Raises DataMissing if it is not there."""
    path = data_path(TOKENIZER)
    return _load(path, version(path))


@lru_cache(maxsize=1)
def _load(path: Path, _version: tuple[int, int]) -> Tokenizer:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(path))


@lru_cache(maxsize=4)
def _file_digest(path: Path, _version: tuple[int, int]) -> bytes:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).digest()


def _read(path: Path, expected: int) -> list[int] | None:
    try:
        counts = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return [int(n) for n in counts] if counts.shape == (expected,) else None


def _write(path: Path, counts: list[int]) -> None:
    """Whole or not at all: others may read the same file at the same moment."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            np.save(file, np.array(counts, dtype=np.int32))
        os.replace(file.name, path)
    except OSError:
        return
