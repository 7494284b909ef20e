"""What a trace is like: lengths, sharing at any position and as a prefix, skew. Draws no plots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from loadgen.traces.base import Trace, TraceRequest

TOP = 20
"""How many of the most used segments the skew is stated for: the size of the paper's hot set."""
FIT_RANKS = 100


def describe(trace: Trace) -> dict[str, Any]:
    """JSON-ready statistics of ``trace``; every share is of tokens, between 0 and 1.

    ``sharing`` is a property of the prompts as the clients wrote them, with a cache that forgets
    nothing; what a policy reaches may be more (reordering) or less (a finite pool).
    """
    requests = trace.requests
    return {
        "trace": trace.name,
        "seed": trace.seed,
        "options": dict(trace.options),
        "notes": list(trace.notes),
        "requests": len(requests),
        "sessions": len({r.session for r in requests if r.session}),
        "prompts_sha256": trace.prompts_sha256,
        "lengths": _lengths(requests),
        "sharing": sharing(requests),
        "skew": skew(requests),
        "key_portion": key_portion(requests),
        "duration_s": max((r.arrival_s for r in requests), default=0.0),
    }


def summary(values: Iterable[float]) -> dict[str, float]:
    """Mean, standard deviation, extremes and percentiles; zeros for nothing."""
    data = np.array(list(values) or [0], dtype=float)
    row = {"mean": float(data.mean()), "std": float(data.std()), "min": float(data.min())}
    row.update({f"p{q}": float(np.percentile(data, q)) for q in (50, 90, 95, 99)})
    return {**row, "max": float(data.max()), "total": float(data.sum())}


def sharing(requests: Sequence[TraceRequest]) -> dict[str, float]:
    """Shares of tokens that more than one request has.

    - ``prefix_shared``: in front of a prompt, the same as in some other request (Preble's measure).
    - ``prefix_repeated``: the same as in an earlier request, its output included: the hit rate of an
      infinite cache in arrival order.
    - ``anywhere_repeated``: in a segment (or the system prefix) that an earlier request had at any
      position.
    - ``segments_*``: the same two beyond the system prefix, as a share of the segments' tokens.
    - ``nonglobal_repeated``: repeated prefix beyond the system prefix, as a share of all beyond it.
    """
    chains = _chains(requests)
    visits = Counter(key for chain in chains for key in chain)
    prompt_tokens = segment_tokens = system_tokens = 0
    shared = repeated = anywhere = segments_prefix = segments_anywhere = system_repeated = 0
    seen_paths: set[int] = set()
    seen_ids: set[bytes] = set()
    for request, chain in zip(requests, chains, strict=True):
        skeleton = request.skeleton
        prompt_tokens += skeleton.prompt_tokens
        segment_ids = {s.id for s in skeleton.segments}
        system_id = None if skeleton.system is None else skeleton.system.id
        key = 0
        for atom, key in zip(request.prompt(), chain, strict=True):
            shared += atom.tokens * (visits[key] > 1)
            in_front = key in seen_paths
            repeated += atom.tokens * in_front
            segments_prefix += atom.tokens * (in_front and atom.id in segment_ids)
            system_repeated += atom.tokens * (in_front and atom.id == system_id)
            seen_paths.add(key)
        for atom in request.output_atoms:
            key = hash((key, atom.id))
            seen_paths.add(key)
        segment_tokens += sum(s.tokens for s in skeleton.segments)
        segments_anywhere += sum(s.tokens for s in skeleton.segments if s.id in seen_ids)
        if skeleton.system is not None:
            system_tokens += skeleton.system.tokens
            anywhere += skeleton.system.tokens * (skeleton.system.id in seen_ids)
            seen_ids.add(skeleton.system.id)
        seen_ids.update(segment_ids, (a.id for a in request.output))
    return {
        "prefix_shared": _share(shared, prompt_tokens),
        "prefix_repeated": _share(repeated, prompt_tokens),
        "anywhere_repeated": _share(anywhere + segments_anywhere, prompt_tokens),
        "segments_prefix_repeated": _share(segments_prefix, segment_tokens),
        "segments_anywhere_repeated": _share(segments_anywhere, segment_tokens),
        "nonglobal_repeated": _share(repeated - system_repeated, prompt_tokens - system_tokens),
    }


def skew(requests: Sequence[TraceRequest]) -> dict[str, float]:
    """How unevenly segments are used; ``zipf_exponent`` is fitted over the first 100 ranks."""
    uses = segment_uses(requests)
    ranked = sorted(uses.values(), reverse=True)
    total = sum(ranked)
    top = {segment for segment, _ in uses.most_common(TOP)}
    with_top = sum(any(s.id in top for s in r.skeleton.segments) for r in requests)
    fit = [n for n in ranked[:FIT_RANKS] if n > 1]
    exponent = 0.0
    if len(fit) > 2:
        ranks = np.log(np.arange(1, len(fit) + 1))
        exponent = -float(np.polyfit(ranks, np.log(fit), 1)[0])
    return {
        "segments": len(ranked),
        "segments_shared": sum(n > 1 for n in ranked),
        "uses_mean": _share(total, len(ranked)),
        "uses_max": ranked[0] if ranked else 0,
        f"top_{TOP}_share_of_uses": _share(sum(ranked[:TOP]), total),
        f"requests_with_top_{TOP}": _share(with_top, len(requests)),
        "zipf_exponent": exponent,
    }


def segment_uses(requests: Sequence[TraceRequest]) -> Counter[bytes]:
    """In how many requests each segment occurs."""
    return Counter(
        segment for r in requests for segment in dict.fromkeys(s.id for s in r.skeleton.segments)
    )


def key_portion(requests: Sequence[TraceRequest]) -> dict[str, float]:
    """Preble's key portion: the deepest node of the prefix tree that is longer than all before it.

    Nodes are runs of a prompt that the same requests have in front. ``requests`` is the mean number
    of requests over the distinct key portions that more than one request has.
    """
    chains = _chains(requests)
    visits = Counter(key for chain in chains for key in chain)
    shared_by: dict[int, int] = {}
    tokens = 0
    for request, chain in zip(requests, chains, strict=True):
        before = node_tokens = node_visits = node_key = 0
        best: tuple[int, int] | None = None
        for atom, key in (*zip(request.prompt(), chain, strict=True), (None, 0)):
            if atom is None or visits[key] != node_visits:
                if node_visits > 1 and node_tokens > before:
                    best = node_key, node_tokens
                before += node_tokens
                node_tokens, node_visits = 0, visits[key]
            if atom is not None:
                node_tokens += atom.tokens
                node_key = key
        if best is not None:
            shared_by[best[0]] = visits[best[0]]
            tokens += best[1]
    prompt_tokens = sum(r.skeleton.prompt_tokens for r in requests)
    return {
        "requests": _share(sum(shared_by.values()), len(shared_by)),
        "distinct": len(shared_by),
        "share_of_prompt": _share(tokens, prompt_tokens),
    }


def _lengths(requests: Sequence[TraceRequest]) -> dict[str, dict[str, float]]:
    return {
        "prompt_tokens": summary(r.skeleton.prompt_tokens for r in requests),
        "output_tokens": summary(r.output_tokens for r in requests),
        "system_tokens": summary(
            r.skeleton.system.tokens if r.skeleton.system else 0 for r in requests
        ),
        "private_tokens": summary(r.skeleton.private_tokens for r in requests),
        "segment_tokens": summary(s.tokens for r in requests for s in r.skeleton.segments),
        "segments": summary(len(r.skeleton.segments) for r in requests),
    }


def _chains(requests: Sequence[TraceRequest]) -> list[list[int]]:
    """For each request a key of every prefix of whole atoms: equal keys, equal prefixes."""
    chains: list[list[int]] = []
    for request in requests:
        key, chain = 0, []
        for atom in request.prompt():
            key = hash((key, atom.id))
            chain.append(key)
        chains.append(chain)
    return chains


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
