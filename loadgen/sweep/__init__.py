"""Sweeps: policies x loads x seeds in virtual time, the knee that loads are shares of, and tables.

A sweep is a directory of runs, one JSON each, that can be stopped and taken up again. Everything in
it is simulated.
"""

from loadgen.sweep.arms import Arm, parse_arm
from loadgen.sweep.knee import KNEE_SHARE, Knee, find_knee, grid_rate, peers
from loadgen.sweep.steps import Step, SweepMismatch, load_results, run_steps, steps
from loadgen.sweep.tables import Incomparable, Row, as_csv, as_markdown, tabulate

__all__ = [
    "KNEE_SHARE",
    "Arm",
    "Incomparable",
    "Knee",
    "Row",
    "Step",
    "SweepMismatch",
    "as_csv",
    "as_markdown",
    "find_knee",
    "grid_rate",
    "load_results",
    "parse_arm",
    "peers",
    "run_steps",
    "steps",
    "tabulate",
]
