"""Which series and labels a PromQL expression names. Evaluates nothing; knows the subset that we use.

Subset: selectors with matchers and ranges, functions, aggregations with ``by``, arithmetic, comparisons
and ``or``/``and``/``unless`` without vector matching.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

AGGREGATIONS = frozenset({"sum", "avg", "max", "min", "count", "topk", "bottomk"})
FUNCTIONS = frozenset(
    {"rate", "irate", "increase", "delta", "histogram_quantile", "label_values", "clamp_min"}
    | {"clamp_max", "max_over_time", "min_over_time", "avg_over_time", "sum_over_time"}
)
"""``label_values`` is Grafana's own, for the values of a variable."""

_OPERATORS = frozenset({"or", "and", "unless", "bool"})

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<number>\d+(?:\.\d+)?(?:[smhdwy]|ms)?(?![A-Za-z_]))
    | (?P<variable>\$\w+|\$\{\w+\})
    | (?P<name>[A-Za-z_:][\w:]*)
    | (?P<sign>=~|!~|!=|==|>=|<=|[-+*/%^(){}\[\],=<>])
    )""",
    re.VERBOSE,
)


@dataclass
class Named:
    """What an expression names: labels by series, and labels that it groups by."""

    series: dict[str, set[str]] = field(default_factory=dict)
    grouped: set[str] = field(default_factory=set)
    groups: bool = False


def named(expression: str) -> Named:
    """Series and labels of an expression. ValueError for what is not of the subset."""
    tokens = list(_tokens(expression))
    found = Named()
    at = 0
    while at < len(tokens):
        kind, text = tokens[at]
        following = tokens[at + 1][1] if at + 1 < len(tokens) else ""
        at += 1
        if kind != "name" or text in _OPERATORS:
            if text == "{":
                raise ValueError(f"matchers without a series in {expression!r}")
            continue
        if text == "by":
            inside, at = _list(tokens, at, "(", ")", expression)
            found.grouped |= {label for kind, label in inside if kind == "name"}
        elif text in AGGREGATIONS and following in ("(", "by"):
            found.groups = True
        elif text == "label_values" and following == "(":
            inside, at = _list(tokens, at, "(", ")", expression)
            found.groups = True
            found.grouped.add(inside[-1][1])
            found.series.setdefault(inside[0][1], set())
        elif following == "(":
            if text not in FUNCTIONS:
                raise ValueError(f"unknown function {text} in {expression!r}")
        else:
            labels = found.series.setdefault(text, set())
            if following == "{":
                inside, at = _list(tokens, at, "{", "}", expression)
                labels |= {label for kind, label in inside if kind == "name"}
    if not found.series:
        raise ValueError(f"no series in {expression!r}")
    return found


def unresolved(expression: str, series: Mapping[str, frozenset[str]]) -> Iterator[str]:
    """What an expression names that is not there, in words; ``series`` has each one's labels.

    A label that is grouped by must be one of every series in the expression: no part of it is then
    summed away unnoticed.
    """
    try:
        found = named(expression)
    except ValueError as error:
        yield str(error)
        return
    for name, labels in found.series.items():
        if name not in series:
            yield f"no series {name}"
            continue
        for label in sorted((labels | found.grouped) - series[name]):
            yield f"{name} has no label {label}"
        if name.endswith("_bucket") and "le" not in found.grouped:
            yield f"{name} is summed over its buckets"


def results(expression: str, series: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Names of the labels that the expression's result has."""
    found = named(expression)
    if found.groups or found.grouped:
        return frozenset(found.grouped - {"le"})
    return frozenset.intersection(*(series.get(name, frozenset()) for name in found.series))


def _tokens(expression: str) -> Iterator[tuple[str, str]]:
    at = 0
    text = expression.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"unreadable at {text[at:]!r} in {expression!r}")
        assert match.lastgroup is not None
        yield match.lastgroup, match[match.lastgroup]
        at = match.end()


def _list(
    tokens: list[tuple[str, str]], at: int, opening: str, closing: str, expression: str
) -> tuple[list[tuple[str, str]], int]:
    """What is between two brackets from ``at`` on, and where it goes on behind them."""
    signs = [text for _, text in tokens[at:]]
    if not signs or signs[0] != opening or closing not in signs:
        raise ValueError(f"expected {opening}…{closing} in {expression!r}")
    end = at + signs.index(closing)
    inside = [token for token in tokens[at + 1 : end] if token[0] != "sign"]
    if not inside:
        raise ValueError(f"nothing in {opening}{closing} in {expression!r}")
    return inside, end + 1
