"""What answers say about orders: scores, differences to the original order, answers that changed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from loadgen.quality.bootstrap import Interval, mean_interval, paired_difference
from loadgen.quality.score import exact_match, token_f1
from prism_ray.model import Order

ALL = "all"
SCORES: Mapping[str, Callable[[str, str], float]] = {"f1": token_f1, "em": exact_match}


class Asked(NamedTuple):
    """One question as one arm asked it: the gold answer, the order, and what the model said."""

    question: str
    kind: str
    gold: str
    order: Order
    answer: str


def arm_report(
    asked: Sequence[Asked], original: Sequence[Asked], rng: np.random.Generator
) -> dict[str, Any]:
    """JSON-ready figures of one arm beside the original order, over the same questions in turn.

    ``moved`` are the questions whose passages stand in another order, ``changed`` those whose answer's
    words differ, ``changed_of_moved`` the same among the moved (None without any), ``better`` and
    ``worse`` those whose F1 rose and fell. ``by_kind`` has the scores of each kind of question.
    ValueError unless both are of the same questions.
    """
    if [a.question for a in asked] != [o.question for o in original]:
        raise ValueError("an arm is compared with the original order of the same questions")
    pairs = list(zip(asked, original, strict=True))
    moved = [a.order != o.order for a, o in pairs]
    changed = [float(a.answer != o.answer) for a, o in pairs]
    changed_of_moved = [value for value, other in zip(changed, moved, strict=True) if other]
    gains = [token_f1(a.answer, a.gold) - token_f1(o.answer, o.gold) for a, o in pairs]
    return {
        "questions": len(asked),
        "moved": sum(moved),
        **{name: interval_json(mean_interval(_scores(asked, name), rng)) for name in SCORES},
        **{
            f"{name}_difference": interval_json(
                paired_difference(_scores(asked, name), _scores(original, name), rng)
            )
            for name in SCORES
        },
        "changed": interval_json(mean_interval(changed, rng)),
        "changed_of_moved": interval_json(mean_interval(changed_of_moved, rng))
        if changed_of_moved
        else None,
        "better": sum(gain > 0 for gain in gains),
        "worse": sum(gain < 0 for gain in gains),
        "by_kind": _by_kind(asked),
    }


def interval_json(interval: Interval) -> dict[str, float]:
    """As an object with mean, low and high."""
    return dict(interval._asdict())


def as_table(arms: Mapping[str, Mapping[str, Any]]) -> str:
    """Markdown: an arm a line, in percent and points, intervals in brackets."""
    lines = [
        "| order | moved | F1 | F1 − original | EM | EM − original | answers that change "
        "| of the moved | F1 better / worse |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, arm in arms.items():
        cells = [
            name,
            f"{arm['moved']} of {arm['questions']}",
            _percent(arm["f1"]),
            _points(arm["f1_difference"]),
            _percent(arm["em"]),
            _points(arm["em_difference"]),
            _percent(arm["changed"]),
            "–" if arm["changed_of_moved"] is None else _percent(arm["changed_of_moved"]),
            f"{arm['better']} / {arm['worse']}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _scores(asked: Sequence[Asked], name: str) -> list[float]:
    score = SCORES[name]
    return [score(one.answer, one.gold) for one in asked]


def _by_kind(asked: Sequence[Asked]) -> dict[str, dict[str, float]]:
    rows: dict[str, dict[str, float]] = {}
    for kind in sorted({one.kind for one in asked}):
        of_kind = [one for one in asked if one.kind == kind]
        rows[kind] = {"questions": len(of_kind)} | {
            name: float(np.mean(_scores(of_kind, name))) for name in SCORES
        }
    return rows


def _percent(interval: Mapping[str, float]) -> str:
    return (
        f"{100 * interval['mean']:.1f}% [{100 * interval['low']:.1f}, {100 * interval['high']:.1f}]"
    )


def _points(interval: Mapping[str, float]) -> str:
    return f"{100 * interval['mean']:+.1f} [{100 * interval['low']:+.1f}, {100 * interval['high']:+.1f}]"
