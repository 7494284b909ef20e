"""Where a long text can be cut so that the pieces' ids, put together, are the whole text's ids.

A tokenizer first splits a text at its added tokens (``<|im_end|>`` and the like) and works on what
lies between them piece by piece. So a cut right after one changes nothing, and an agent's earlier
turns need not be tokenized again on every call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

MIN_CHARS = 2000
"""Shorter texts are not worth cutting."""


class ChunkCutter:
    """Cuts texts after added tokens; ``exact`` says whether that is sound for this tokenizer."""

    def __init__(self, added_tokens: Iterable[Any], encode: Callable[[str], list[int]]) -> None:
        tokens = [token for token in added_tokens if token.content]
        plain = not any(t.lstrip or t.rstrip or t.single_word or t.normalized for t in tokens)
        contents = sorted((t.content for t in tokens), key=len, reverse=True)
        self._added = re.compile("|".join(map(re.escape, contents)))
        self.exact = plain and bool(contents) and all(_same(t, encode) for t in contents)

    def cut(self, text: str) -> list[str]:
        """``text`` in pieces, each but the last ending in an added token."""
        cuts = [0, *(match.end() for match in self._added.finditer(text)), len(text)]
        return [text[a:b] for a, b in pairwise(cuts) if a < b]


def _same(token: str, encode: Callable[[str], list[int]]) -> bool:
    """Does what follows ``token`` get the ids that it has by itself?"""
    rights = ("y", " y", "\n\ny", "7")
    return all(encode(f"x {token}{r}") == encode(f"x {token}") + encode(r) for r in rights)
