"""Placements that know no request: which replica with credit is served next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prism_ray.placement.base import PLACEMENTS, ReplicaLoad, Turns, refuse_unknown


class Single:
    """All to the one replica there is."""

    def choose(self, ready: Sequence[ReplicaLoad]) -> str:
        return ready[0].replica

    def took(self, replica: str) -> None:
        """Nothing to remember."""


class RoundRobin:
    """Replicas take turns by name; one without credit is passed over, not waited for."""

    def __init__(self) -> None:
        self._last = ""

    def choose(self, ready: Sequence[ReplicaLoad]) -> str:
        after = [r.replica for r in ready if r.replica > self._last]
        return after[0] if after else ready[0].replica

    def took(self, replica: str) -> None:
        self._last = replica


class LeastLoaded:
    """The replica with the fewest tokens left to prefill; ties by requests sent, then by dispatches.

    Ties never go by name alone: that would send every quiet moment's request to the same replica.
    """

    def choose(self, ready: Sequence[ReplicaLoad]) -> str:
        return min(ready, key=lambda r: (r.load_tokens, r.running, r.dispatched, r.replica)).replica

    def took(self, replica: str) -> None:
        """Nothing to remember: loads and dispatches come with the question."""


@PLACEMENTS.register("single")
def _single(params: Mapping[str, Any]) -> Turns:
    refuse_unknown("single", params, ())
    return Single()


@PLACEMENTS.register("round-robin")
def _round_robin(params: Mapping[str, Any]) -> Turns:
    refuse_unknown("round-robin", params, ())
    return RoundRobin()


@PLACEMENTS.register("least-loaded")
def _least_loaded(params: Mapping[str, Any]) -> Turns:
    refuse_unknown("least-loaded", params, ())
    return LeastLoaded()
