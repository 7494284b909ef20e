"""E2's choice against a brute-force reading of the paper's rule, on tiny instances.

The twin keeps a list of all placements and builds nothing else: every question is answered by looking
through the list.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from prism_ray.model import NO_GAP, ReplicaCapacity, Segment, Skeleton, Ticket
from prism_ray.placement.e2 import E2

H = 180.0
RATE = 1_024.0
"""A power of two: costs are exact, so equal ones are equal."""
TOKENS = {"a": 100, "b": 70, "c": 200, "d": 30}
PLAIN = {
    "rebalance": False,
    "replicate": False,
    "decode_balance": False,
    "spill": False,
    "equal_cost": 1.0,
    "prefill_tokens_per_s": RATE,
}
CAPACITY = ReplicaCapacity(pool_tokens=10**6, max_running=64, prefill_ahead_tokens=8_192)


@dataclass(frozen=True)
class Past:
    at_s: float
    replica: str
    letters: str
    cost_s: float


class Twin:
    def __init__(self, replicas: str) -> None:
        self.replicas = replicas
        self.past: list[Past] = []

    def place(self, letters: str, private: int, now_s: float) -> str:
        length = tokens(letters) + private
        front = max((self.held(letters, r) for r in self.replicas), key=len)
        cached = min(tokens(front), length - 1)
        candidates = list(self.replicas)
        if length - cached < cached:
            candidates = self.holders(self.longest(front, now_s))
        costs = []
        for replica in candidates:
            missed = length - tokens(self.held(front, replica))
            load = sum(p.cost_s for p in self.recent(now_s) if p.replica == replica)
            wait = sum(p.cost_s for p in self.past if p.replica == replica)
            placed = sum(p.replica == replica for p in self.past)
            costs.append((load + missed / RATE, wait + missed / RATE, placed, replica))
        least = min(costs)[0]
        chosen = min(entry[1:] for entry in costs if entry[0] == least)[-1]
        missed = length - min(tokens(self.held(front, chosen)), length - 1)
        self.past.append(Past(now_s, chosen, letters, missed / RATE))
        return chosen

    def recent(self, now_s: float) -> list[Past]:
        return [p for p in self.past if p.at_s > now_s - H]

    def held(self, letters: str, replica: str) -> str:
        """The longest front of ``letters`` that the replica was ever sent."""
        ends = range(len(letters), 0, -1)
        sent = [p.letters for p in self.past if p.replica == replica]
        return next((letters[:e] for e in ends if any(s.startswith(letters[:e]) for s in sent)), "")

    def holders(self, front: str) -> list[str]:
        return [r for r in self.replicas if self.held(front, r) == front]

    def longest(self, front: str, now_s: float) -> str:
        """The front up to the end of its longest run that nothing parts; the deepest of equals."""
        runs: list[tuple[int, str]] = []
        start = 0
        for end in range(1, len(front) + 1):
            if end == len(front) or self.parts(front[:end], front[: end + 1], now_s):
                # A run that the prompt leaves in the middle counts as far as it matches.
                runs.append((tokens(front[start:end]), front[:end]))
                start = end
        return max(reversed(runs), key=lambda run: run[0])[1]

    def parts(self, upper: str, lower: str, now_s: float) -> bool:
        """Whether anything tells a front from the one that is a segment longer."""
        known = {p.letters[: len(lower)] for p in self.past if p.letters.startswith(upper)}
        if known != {lower}:
            return True
        uses = [sum(p.letters.startswith(f) for p in self.recent(now_s)) for f in (upper, lower)]
        return uses[0] != uses[1] or self.holders(upper) != self.holders(lower)


def tokens(letters: str) -> int:
    return sum(TOKENS[letter] for letter in letters)


REQUESTS = st.lists(
    st.tuples(
        st.text("abcd", min_size=1, max_size=4), st.sampled_from([5, 90, 300]), st.integers(0, 90)
    ),
    max_size=25,
)


@given(REQUESTS, st.sampled_from(["a", "xy", "xyz"]))
@settings(deadline=None, max_examples=150)
def test_e2_chooses_what_brute_force_chooses(
    requests: list[tuple[str, int, int]], replicas: str
) -> None:
    e2, twin = E2(PLAIN), Twin(replicas)
    for replica in replicas:
        e2.join(replica, CAPACITY, None, 0.0)
    now_s = 1_000.0
    for number, (letters, private, pause_s) in enumerate(requests):
        now_s += pause_s
        segments = tuple(Segment(letter.encode(), TOKENS[letter]) for letter in letters)
        skeleton = Skeleton(None, segments, (NO_GAP,) * len(segments), private)
        path = skeleton.path(skeleton.native_order)
        choice = e2.place(Ticket(f"q{number}", skeleton, now_s), path, now_s)
        assert choice.replica == twin.place(letters, private, now_s), choice
        e2.check_integrity()
