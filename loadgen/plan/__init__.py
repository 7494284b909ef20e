"""Capacity planning on paper: knee, utilization, waiting, and what hit rate is worth. Simulates nothing.

Equations 5 and 6 and Theorem 1 of the PRISM paper with an M/G/1 queue behind them. Pure; the command
fills it from a trace and a profile and can check it against the simulator.
"""

from loadgen.plan.capacity import (
    Load,
    Machine,
    Plan,
    knee,
    relative_service_rate,
    replicas_for,
    service_rate,
)

__all__ = [
    "Load",
    "Machine",
    "Plan",
    "knee",
    "relative_service_rate",
    "replicas_for",
    "service_rate",
]
