"""Bounds on what one prompt may ask of the splitter. Values only; who checks them is elsewhere."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PromptLimits:
    """``segments`` counts marked segments (more: 400) and caps what is found automatically.

    ``segment_bytes`` bounds one marked segment's UTF-8 text, ``label_chars`` its label. Unmarked
    pieces shorter than ``automatic_min_tokens`` are no segments. ``context_length`` 0: not checked.
    """

    segments: int = 256
    segment_bytes: int = 1 << 20
    label_chars: int = 64
    automatic_min_tokens: int = 64
    context_length: int = 0
