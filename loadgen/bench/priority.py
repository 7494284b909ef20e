"""Real-time priority for a measurement, where the machine lets this process have it. Linux.

At ordinary priority a generator waits for whatever else runs, and what it measures is that.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

REAL_TIME = "real-time"
ORDINARY = "ordinary"


@contextmanager
def real_time_priority() -> Iterator[str]:
    """Round robin at the lowest real-time priority, for this process and those that it starts meanwhile.

    Yields REAL_TIME, or ORDINARY where that is not allowed (it takes CAP_SYS_NICE).
    """
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        yield ORDINARY
        return
    try:
        yield REAL_TIME
    finally:
        os.sched_setscheduler(0, *before)
