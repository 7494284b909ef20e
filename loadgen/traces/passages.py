"""Real texts for the passages of ``zipf_hotspot``, cut or padded to one length. Draws no requests."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from loadgen.traces.base import digest
from loadgen.traces.data import data_path, version
from loadgen.traces.retrieval import FILES, read_lists
from loadgen.traces.tokens import load_tokenizer


def passage_texts(seed: int, passages: int, tokens: int) -> Callable[[bytes], str | None]:
    """Maps the ids of ``zipf_hotspot``'s passages to texts; None for any other id.

    The work is done at the first call: it reads MultiHop-RAG's retrieval results and raises
    DataMissing if they or the tokenizer are not there.
    """

    def text_of(segment: bytes) -> str | None:
        found = data_path(FILES["multihop-rag"])
        return _texts(seed, passages, tokens, found, version(found)).get(segment)

    return text_of


@lru_cache(maxsize=4)
def _texts(
    seed: int, passages: int, tokens: int, _path: Path, _version: tuple[int, int]
) -> dict[bytes, str]:
    real = list(dict.fromkeys(text for row in read_lists("multihop-rag") for text in row))
    if passages > len(real):
        raise ValueError(f"there are {len(real)} real passages, not {passages}")
    chosen = random.Random(f"passages-{seed}").sample(real, passages)
    return {digest(f"passage-{i}"): fit_text(text, tokens) for i, text in enumerate(chosen)}


def fit_text(text: str, tokens: int) -> str:
    """``text``, repeated or cut until its own count is ``tokens``.

    A cut between two tokens can merge or split what is left; words at the end make up for that.
    Raises ValueError if no cut near that length has the right count.
    """
    tokenizer = load_tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=False).ids or [0]
    while len(ids) < tokens:
        ids = [*ids, *ids]
    for take in range(tokens, 0, -1):
        candidate = tokenizer.decode(ids[:take]).replace("\ufffd", "")
        for _ in range(tokens):
            found = len(tokenizer.encode(candidate, add_special_tokens=False).ids)
            if found >= tokens:
                break
            candidate += " and" * (tokens - found)
        if found == tokens:
            return candidate
    raise ValueError(f"cannot make {tokens} tokens of {text[:40]!r}")
