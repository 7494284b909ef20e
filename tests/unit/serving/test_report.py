"""The ``prism`` object of a response: hits beyond what all prompts of an application share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from prism_ray.model import NO_GAP, Decision, Lane, Segment, SegmentKind, Skeleton
from prism_ray.serving.inference import Inference
from prism_ray.serving.messages import Answered

SYSTEM = Segment(b"policy", 100, SegmentKind.SYSTEM)
TOOL = Segment(b"tool", 50, SegmentKind.TOOL)
TURN = Segment(b"turn", 30, SegmentKind.TURN)


def report(cached_tokens: int, private_tokens: int, *segments: Segment) -> dict[str, Any]:
    skeleton = Skeleton(SYSTEM, segments, (NO_GAP,) * len(segments), private_tokens)
    prompt: Any = SimpleNamespace(skeleton=skeleton, labels=("segment",) * len(segments))
    request = Inference("chat", {}, prompt, 8, b"", 0.0)
    order = skeleton.native_order
    request.decision = Decision("a", 0, "e", "r", 1, 0, order, Lane.HOT, 0.0, 0)
    request.answered = Answered(skeleton.prompt_tokens, cached_tokens, 8)
    return request.report()


@pytest.mark.parametrize(
    ("cached_tokens", "expected"),
    [(170, (20, 0.5)), (150, (0, 0.0)), (90, (0, 0.0)), (189, (39, 0.975))],
)
def test_hits_are_counted_from_the_end_of_the_tools(
    cached_tokens: int, expected: tuple[int, float]
) -> None:
    found = report(cached_tokens, 10, TOOL, TURN)["non_global"]
    assert found == {"prompt_tokens": 40, "cached_tokens": expected[0], "hit_rate": expected[1]}


def test_there_is_no_rate_where_nothing_lies_beyond() -> None:
    assert report(100, 0, TOOL)["non_global"] is None
