"""How the live page and ``prism-ray top`` write text and numbers. Pure."""

from __future__ import annotations

NONE = "–"
"""Where nothing is known."""


def printable(text: str) -> str:
    """Control characters, overrides of direction and lone surrogates as U+FFFD."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def whole(value: float | None) -> str:
    """1234567.8 as 1,234,568."""
    return NONE if value is None else f"{value:,.0f}"


def seconds(value_s: float | None) -> str:
    """Three digits and the unit that suits: 0.4 ms, 43 ms, 1.25 s, 2.5 min."""
    if value_s is None:
        return NONE
    if value_s < 0.01:
        return f"{value_s * 1000:.1f} ms"
    if value_s < 0.9995:
        return f"{value_s * 1000:.0f} ms"
    if value_s < 120:
        return f"{value_s:.3g} s"
    return f"{value_s / 60:.3g} min"


def percent(share: float | None) -> str:
    return NONE if share is None else f"{100 * share:.1f} %"


def score(value: float) -> str:
    """Four digits; no exponent for what people compare by eye."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def part(value: float | None, of: float | None) -> float | None:
    """0 to 1; None where there is no whole."""
    return None if value is None or not of else max(0.0, min(1.0, value / of))
