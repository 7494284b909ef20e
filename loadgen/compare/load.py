"""How busy the machine was during a run, and how much of that was somebody else's. Linux."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from loadgen.bench.processes import cpu_s, families

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


class MachineLoad:
    """A stopwatch of CPU time: ``pids`` and their children are the run's, all else is others'."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = (os.getpid(), *pids)
        self._start_s = time.monotonic()
        self._busy_s, self._own_s = _busy_s(), self._own()

    def read(self) -> dict[str, Any]:
        """Mean cores that the run and that others used since the start; the load average now."""
        wall_s = max(time.monotonic() - self._start_s, 1e-9)
        busy, own = (_busy_s() - self._busy_s) / wall_s, (self._own() - self._own_s) / wall_s
        return {
            "cores": os.cpu_count(),
            "own_cores": round(own, 2),
            "others_cores": round(max(0.0, busy - own), 2),
            "load_1m": round(os.getloadavg()[0], 2),
        }

    def _own(self) -> float:
        return cpu_s({pid for family in families(self._pids).values() for pid in family})


def _busy_s() -> float:
    """CPU seconds of the machine since it started, idle and waiting for disks left out."""
    first = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, first)
    return (user + nice + system + irq + softirq + steal) * _TICK_S
