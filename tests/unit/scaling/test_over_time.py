"""The number of replicas over hours of random load, with Serve's delays and engines that start slowly.

A model of a queue, one second a step: replicas work through what arrives, in seconds of work.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from statistics import fmean

import numpy as np
import pytest

from prism_ray.config import AutoscalingConfig
from prism_ray.scaling import ReplicaWork, Targets, replicas_wanted

DEFAULTS = AutoscalingConfig(max_count=16)
TARGETS = Targets(most=16)
RATE = 8_000.0
REQUEST_S = 0.25
"""Work of a request: 2,000 tokens."""
STARTING_S = 90


class Queue:
    """``load``: seconds of one replica's work that arrive in a second."""

    def __init__(self, seed: int, load: float = 0.3) -> None:
        self.load = load
        self.asked_for = 1
        self.history: list[int] = []
        self.waits_s: list[float] = []
        self._rng = np.random.default_rng(seed)
        self._waiting_s = 0.0
        self._running = 1
        self._starting: deque[int] = deque()
        self._seen: deque[tuple[float, float]] = deque(maxlen=int(DEFAULTS.window_s))
        self._since = {"up": 0, "down": 0}

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self._step()

    def _step(self) -> None:
        now = len(self.history)
        while self._starting and self._starting[0] <= now:
            self._starting.popleft()
            self._running += 1
        self._waiting_s += REQUEST_S * self._rng.poisson(self.load / REQUEST_S)
        done_s = min(self._waiting_s, self._running)
        self._waiting_s -= done_s
        self.waits_s.append(self._waiting_s / self._running)
        self._seen.append((self._waiting_s, done_s))
        self._decide(now)
        self.history.append(self.asked_for)

    def _decide(self, now: int) -> None:
        n = self._running
        waiting_s, busy = map(fmean, zip(*self._seen, strict=True))
        each = ReplicaWork(RATE * waiting_s / n, 0, RATE, busy / n)
        wanted = replicas_wanted([each] * n, self.asked_for, TARGETS)
        # Serve: what differs for so long is done.
        ways = {"up": wanted > self.asked_for, "down": wanted < self.asked_for}
        for way, delay_s in (("up", DEFAULTS.up_delay_s), ("down", DEFAULTS.down_delay_s)):
            if not ways[way]:
                self._since[way] = now
            elif now - self._since[way] >= delay_s:
                self._since[way] = now
                self._change_to(wanted, now)

    def _change_to(self, wanted: int, now: int) -> None:
        for _ in range(wanted - self.asked_for):
            self._starting.append(now + STARTING_S)
        for _ in range(self.asked_for - wanted):
            if self._starting:
                self._starting.pop()
            else:
                self._running -= 1
        self.asked_for = wanted


def changes(history: list[int]) -> int:
    return sum(a != b for a, b in pairwise(history))


@pytest.mark.parametrize("load", [0.1, 0.45, 0.75, 0.85, 1.55, 2.5, 4.1, 7.9])
@pytest.mark.parametrize("seed", [0, 1])
def test_under_a_steady_load_it_settles_and_stays(load: float, seed: int) -> None:
    queue = Queue(seed, load)
    queue.run(2 * 3_600)
    settled = queue.history[3_600:]
    assert changes(settled) <= 1, "an hour later at most one more change in an hour"
    assert load <= TARGETS.busy_high * max(settled)
    assert max(settled) <= max(1.0, load / TARGETS.busy_low + 1)
    assert fmean(queue.waits_s[3_600:]) < TARGETS.work_high_s


def test_a_peak_is_followed_up_and_down() -> None:
    queue = Queue(0)
    queue.run(600)
    assert queue.history[-1] == 1
    queue.load = 4.0
    queue.run(600)
    assert queue.history[-1] >= 5
    assert queue.history[600 + 30] >= 5, "half a minute after the rise all are asked for"
    assert fmean(queue.waits_s[-60:]) < TARGETS.work_high_s
    queue.load = 0.3
    queue.run(600)
    assert queue.history[-1] == 1
    assert changes(queue.history) <= 6


def test_a_short_burst_starts_nothing() -> None:
    queue = Queue(0)
    queue.run(300)
    queue.load = 4.0
    queue.run(1)
    queue.load = 0.0
    queue.run(300)
    assert set(queue.history) == {1}
