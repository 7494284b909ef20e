"""An event loop on a clock of its own: time stands still while anything can run, then leaps to what is due.

For tests marked ``virtual_time``, whose tasks wait for timers and for each other alone: however slow the
machine, what is due first comes first. No sockets and no threads: nothing would wait for them.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any

TURN_S = 1e-9


class _Leap(selectors.DefaultSelector):
    """Waits in no time. Each turn of the loop takes a nanosecond, because a wait can be too short to be
    added to a float: whoever asks again for the rest of it must not ask for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        self.now_s += TURN_S
        if not ready:
            if timeout is None:
                raise RuntimeError("everything waits, and nothing is due")
            self.now_s += max(timeout, 0.0)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._leap = _Leap()
        super().__init__(self._leap)

    def time(self) -> float:
        return self._leap.now_s

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """At once, here: another thread would take real time."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future
