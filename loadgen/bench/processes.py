"""CPU time and resident memory of processes and their children, from /proc (Linux). Starts none."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on (the second may hold blanks)."""
    text = Path(f"/proc/{pid}/stat").read_text()
    return text[text.rindex(")") + 2 :].split()


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parent = int(_stat(int(entry))[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            found.setdefault(parent, []).append(int(entry))
    return found


def families(pids: Iterable[int]) -> dict[int, list[int]]:
    """Each process with all its descendants."""
    children = _children()
    found = {}
    for pid in pids:
        family, todo = [], [pid]
        while todo:
            member = todo.pop()
            family.append(member)
            todo += children.get(member, [])
        found[pid] = family
    return found


def cpu_s(pids: Iterable[int]) -> float:
    """User and system time that the processes have used, with what they waited for of ended children."""
    total = 0
    for pid in pids:
        try:
            fields = _stat(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(int(fields[index]) for index in (11, 12, 13, 14))
    return total * _TICK_S


def rss_bytes(pid: int) -> int:
    """Resident memory of one process. Raises FileNotFoundError when it is gone."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
