"""Runs in virtual time: one policy, one trace, one rate, and what came of it. Simulated, never measured.

``simulate`` makes the JSON of ``prism-loadgen simulate``; ``run`` keeps every request for those who
want to look closer. The cluster itself is ``loadgen.virtual``.
"""

from loadgen.simulate.knees import UnknownKnee, kept_knee
from loadgen.simulate.report import report
from loadgen.simulate.run import Run, run
from loadgen.simulate.spec import BadSpec, SimSpec, parse_settings

__all__ = [
    "BadSpec",
    "Run",
    "SimSpec",
    "UnknownKnee",
    "kept_knee",
    "parse_settings",
    "report",
    "run",
    "simulate",
]


def simulate(spec: SimSpec) -> dict[str, object]:
    """Run ``spec`` and report it. Raises BadSpec, UnknownName, BadProfile, UnknownKnee."""
    return report(run(spec))
