"""Exact match and token F1 of an answer against a gold answer, as SQuAD scores them. Asks no model.

Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text" (2016), section 6.1.
"""

from __future__ import annotations

import re
import string
from collections import Counter

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(text: str) -> str:
    """Lower case, without punctuation and English articles, single spaces."""
    bare = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact_match(answer: str, gold: str) -> float:
    """1.0 if both are the same once normalized, else 0.0."""
    return float(normalized(answer) == normalized(gold))


def token_f1(answer: str, gold: str) -> float:
    """Harmonic mean of precision and recall over normalized words, counted with their repetitions.

    If either has no words: 1.0 where both have none, else 0.0.
    """
    said, wanted = normalized(answer).split(), normalized(gold).split()
    if not said or not wanted:
        return float(said == wanted)
    common = (Counter(said) & Counter(wanted)).total()
    return 2 * common / (len(said) + len(wanted))
