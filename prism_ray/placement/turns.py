"""Placements that know no request: which replica with credit is served next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import nsmallest
from typing import Any

from prism_ray.placement.base import PLACEMENTS, Choice, ReplicaLoad, Turns, refuse_unknown


class Single:
    """All to the one replica there is."""

    def choose(self, ready: Sequence[ReplicaLoad]) -> Choice:
        only = ready[0]
        numbers = {"load_tokens": only.load_tokens, "running": only.running}
        return Choice(only.replica, "single", numbers)

    def took(self, replica: str) -> None:
        """Nothing to remember."""


class RoundRobin:
    """Replicas take turns by name; one without credit is passed over, not waited for."""

    def __init__(self) -> None:
        self._last = ""
        self._turn = 1

    def choose(self, ready: Sequence[ReplicaLoad]) -> Choice:
        after = [r.replica for r in ready if r.replica > self._last]
        replica = after[0] if after else ready[0].replica
        numbers: dict[str, float | int | str] = {"turn": self._turn, "ready": len(ready)}
        if self._last:
            numbers["after"] = self._last
        return Choice(replica, "turn", numbers)

    def took(self, replica: str) -> None:
        self._last = replica
        self._turn += 1


class LeastLoaded:
    """The replica with the fewest tokens left to prefill; ties by requests sent, then by dispatches.

    Ties never go by name alone: that would send every quiet moment's request to the same replica.
    """

    def choose(self, ready: Sequence[ReplicaLoad]) -> Choice:
        def load(of: ReplicaLoad) -> tuple[int, int, int, str]:
            return of.load_tokens, of.running, of.dispatched, of.replica

        least, *rest = nsmallest(2, ready, key=load)
        numbers: dict[str, float | int | str] = {
            "load_tokens": least.load_tokens,
            "running": least.running,
            "dispatched": least.dispatched,
        }
        for other in rest:
            numbers["runner_up"] = other.replica
            numbers["runner_up_load_tokens"] = other.load_tokens
            numbers["runner_up_running"] = other.running
            numbers["runner_up_dispatched"] = other.dispatched
        return Choice(least.replica, "least-loaded", numbers)

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
