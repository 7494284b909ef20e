"""An E2 to place prompts with, and what replicas really have cached."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from prism_ray.model import NO_GAP, Atom, ReplicaCapacity, Segment, Skeleton, Ticket
from prism_ray.placement import Choice, Path
from prism_ray.placement.e2 import E2
from prism_ray.scheduling import Match

ROOM = ReplicaCapacity(pool_tokens=100_000, max_running=64, prefill_ahead_tokens=8_192)


class Truth:
    """What a replica really has cached of any path, in tokens."""

    def __init__(self, tokens: int = 10**6) -> None:
        self.tokens = tokens

    def match(self, path: tuple[Atom, ...]) -> Match:
        tokens = min(self.tokens, sum(atom.tokens for atom in path))
        return Match(tokens, tokens)


class Desk:
    """An E2 with numbered requests: ``place`` a prompt written as ``name*tokens``."""

    def __init__(self, replicas: Iterable[str] = "ab", **params: object) -> None:
        self.e2 = E2({"prefill_tokens_per_s": 1_000, **params})
        self.now = 0.0
        self._numbers = (f"q{n}" for n in count())
        self.paths: dict[str, Path] = {}
        for replica in replicas:
            self.e2.join(replica, ROOM, None, 0.0)

    def place(self, *segments: str, private: int = 10) -> tuple[str, Choice]:
        parts = [Segment(s.partition("*")[0].encode(), int(s.partition("*")[2])) for s in segments]
        skeleton = Skeleton(None, tuple(parts), (NO_GAP,) * len(parts), private)
        request = Ticket(next(self._numbers), skeleton, self.now)
        self.paths[request.request_id] = skeleton.path(skeleton.native_order)
        choice = self.e2.place(request, self.paths[request.request_id], self.now)
        return request.request_id, choice

    def serve(self, *segments: str, private: int = 10, output: int = 1) -> str:
        """Through a whole life at once; returns the replica."""
        name, choice = self.place(*segments, private=private)
        self.send(name)
        self.e2.prefilled(name, self.now)
        self.e2.released(name, output, self.now)
        return choice.replica

    def send(self, name: str, cached: int = 0) -> None:
        self.e2.sent(name, self.paths[name], cached, self.now)
