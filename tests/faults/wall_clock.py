"""Makes a process's wall clock wrong. Imports nothing else: it is loaded in the event loops of actors."""

from __future__ import annotations

import time
from typing import Any

_RIGHT = (time.time, time.time_ns)


def shift(_: Any, shift_s: float) -> None:
    """Let ``time.time`` and ``time.time_ns`` of this process be wrong by ``shift_s``."""
    seconds, nanoseconds = _RIGHT
    time.time = lambda: seconds() + shift_s
    time.time_ns = lambda: nanoseconds() + int(shift_s * 1e9)
