"""From an engine call's boundaries to the anchors and hints that a cache takes. Knows no engine."""

from __future__ import annotations

from typing import Any

from prism_ray.dart import PRIVATE, Anchor, AnchorMark, NodeKind, Owner
from prism_ray.dart.hints import envelope
from prism_ray.engine.base import EngineCall


def call_anchors(call: EngineCall) -> tuple[Anchor, ...]:
    """Who owns the tokens up to each boundary. Raises ValueError if names and boundaries differ."""
    path_keys = call.path_keys or (None,) * len(call.boundaries)
    if not len(call.segments) == len(path_keys) == len(call.boundaries):
        raise ValueError(
            f"{len(call.boundaries)} boundaries but {len(call.segments)} segments "
            f"and {len(path_keys)} path keys"
        )
    anchors = []
    for offset, segment, key in zip(call.boundaries, call.segments, path_keys, strict=True):
        owner = PRIVATE if segment is None else Owner(NodeKind.REUSABLE, segment, key)
        if 0 < offset <= call.system_tokens:
            owner = Owner(NodeKind.SYSTEM, segment, key)
        anchors.append(Anchor(offset, owner))
    return tuple(anchors)


def call_hints(call: EngineCall) -> dict[str, Any] | None:
    """SGLang's ``kv_hints`` of a call: its anchors, and the demand table if it brings one.

    Raises ValueError like ``call_anchors``.
    """
    marks = [AnchorMark.of(anchor) for anchor in call_anchors(call)]
    return envelope(call.request_id, marks, call.hints)
