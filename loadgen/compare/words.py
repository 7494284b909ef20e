"""Prompts as texts that tokenize to known ids: what a router must be given, which reads texts only.

Routers' cache-aware rules compare texts; a prompt of token ids is an empty one to them, and everything
goes to one server.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from loadgen.real.token_ids import FIRST_ID, AtomTokens
from prism_ray.model import Atom

_WORD = re.compile(r"[Ġ▁][a-z]{2,}")
"""A lower-case word with the blank before it, in the alphabets of byte-level BPE and SentencePiece."""


class WordTokens(AtomTokens):
    """Token ids of atoms that are words of a model's vocabulary, so that every prompt has a text.

    ``tokenizer``: a model directory's tokenizer.json. Raises ValueError where it has too few words.
    """

    def __init__(self, tokenizer: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        vocabulary = self._tokenizer.get_vocab()
        self._words = sorted(i for word, i in vocabulary.items() if _WORD.fullmatch(word))
        if len(self._words) < FIRST_ID:
            raise ValueError(f"{tokenizer} has {len(self._words)} words: too few to write prompts")
        super().__init__(FIRST_ID + len(self._words))

    def text(self, ids: Sequence[int]) -> str:
        """The text of a prompt. Raises ValueError unless it is read as the same ids."""
        text: str = self._tokenizer.decode(list(ids))
        if self._tokenizer.encode(text).ids != list(ids):
            raise ValueError("the tokenizer does not read back what it wrote")
        return text

    def _draw(self, atom: Atom) -> list[int]:
        return [self._words[number - FIRST_ID] for number in super()._draw(atom)]
