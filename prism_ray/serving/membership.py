"""Which replicas Serve runs, as this process was told; shared by the request router and the ingress."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

Listener = Callable[[frozenset[str]], None]

LEFT_MAX = 256
"""Names of replicas that left, kept to tell them from those that are yet to come."""


class Membership:
    """The replicas that Serve says are running, as this process's router was told.

    The router may live in a thread of its own; listeners are called in that thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._replicas: frozenset[str] = frozenset()
        self._left: deque[str] = deque(maxlen=LEFT_MAX)
        self._listeners: list[Listener] = []
        self._waits = 0

    @property
    def replicas(self) -> frozenset[str]:
        return self._replicas

    def watch(self, listener: Listener) -> None:
        """Call ``listener`` now and whenever the set changes."""
        with self._lock:
            self._listeners.append(listener)
            current = self._replicas
        listener(current)

    def set(self, replicas: frozenset[str]) -> None:
        with self._lock:
            if replicas == self._replicas:
                return
            self._left.extend(self._replicas - replicas)
            self._replicas = replicas
            listeners = list(self._listeners)
        for listener in listeners:
            listener(replicas)

    def left(self, replica: str) -> bool:
        """Whether it was there and is not any more; False also for one that was never heard of.

        A replica starts before every router has been told of it, and its name never comes again.
        """
        with self._lock:
            return replica in self._left and replica not in self._replicas

    def call_waits(self) -> None:
        """The router holds a call back: the replica it is for is not among those it knows."""
        with self._lock:
            self._waits += 1

    def take_waits(self) -> int:
        """How often a call was held back since this was asked last."""
        with self._lock:
            waits, self._waits = self._waits, 0
        return waits

    def remove(self, replica: str) -> None:
        """A call found the replica's process dead; Serve's own next word may be seconds away."""
        self.set(self._replicas - {replica})


_memberships: dict[tuple[str, str], Membership] = {}
_memberships_lock = threading.Lock()


def membership_of(app: str, deployment: str) -> Membership:
    """The membership of one deployment in this process; made on first use."""
    with _memberships_lock:
        return _memberships.setdefault((app, deployment), Membership())
