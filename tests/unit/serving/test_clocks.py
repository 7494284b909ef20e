"""No interval is measured with the wall clock, which jumps: a check of every use of it in the package."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import prism_ray

ROOT = Path(prism_ray.__file__).parent

WALL_CLOCKS = {
    ("time", "time"),
    ("time", "time_ns"),
    ("time", "localtime"),
    ("time", "gmtime"),
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("datetime", "today"),
    ("date", "today"),
}

STAMPS = {
    "engine/simulated.py": {"_read": "`created` of an answer"},
    "serving/ingress.py": {"__init__": "`created` of a model"},
    "serving/qas_telemetry.py": {
        "checkpoint": "the age of a checkpoint, read by another process, maybe on another machine",
        "_recall": "the same",
    },
    "telemetry/store.py": {"__init__": "rows bear the time at which they were noted, for people"},
    "telemetry/tracing.py": {"emit": "spans bear wall-clock times; their lengths are monotonic"},
}
"""Where a point in time is wanted, for others to read, by file and function. Nothing else may ask."""


def wall_clock_uses(source: str) -> list[tuple[str, int]]:
    """(function, line) of every mention of a wall clock, called or handed on, also under another name."""
    tree = ast.parse(source)
    dotted, bare = _names(tree)
    found: list[tuple[str, int]] = []

    def visit(node: ast.AST, function: str) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
        if isinstance(node, ast.Attribute):
            owner = node.value
            module = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
            if (module, node.attr) in dotted:
                found.append((function, node.lineno))
        elif isinstance(node, ast.Name) and node.id in bare:
            found.append((function, node.lineno))
        for child in ast.iter_child_nodes(node):
            visit(child, function)

    visit(tree, "")
    return found


def _names(tree: ast.Module) -> tuple[set[tuple[str, str]], set[str]]:
    """The wall clocks by the names that a module's imports give them: dotted ones, and bare ones."""
    dotted, bare = set(WALL_CLOCKS), set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        for alias in node.names:
            name = alias.asname or alias.name
            dotted |= {(name, clock) for owner, clock in WALL_CLOCKS if owner == alias.name}
            if isinstance(node, ast.ImportFrom) and (node.module, alias.name) in WALL_CLOCKS:
                bare.add(name)
    return dotted, bare


def test_every_use_of_the_wall_clock_is_a_stamp_and_no_interval() -> None:
    uses = {
        str(path.relative_to(ROOT)): functions
        for path in sorted(ROOT.rglob("*.py"))
        if (functions := {function for function, _ in wall_clock_uses(path.read_text())})
    }
    assert uses == {file: set(functions) for file, functions in STAMPS.items()}


@pytest.mark.parametrize(
    "source",
    [
        "import time\nx = time.time() - y",
        "import time as t\nx = t.time()",
        "from time import time\nx = time()",
        "from time import time as now\nx = now()",
        "import time\ndef f(clock=time.time): ...",
        "import datetime\nx = datetime.datetime.now()",
        "from datetime import datetime as d\nx = d.utcnow()",
    ],
)
def test_the_check_finds_a_wall_clock_however_it_is_written(source: str) -> None:
    assert len(wall_clock_uses(source)) == 1


def test_the_check_leaves_the_monotonic_clock_alone() -> None:
    assert not wall_clock_uses("import time\nx = time.monotonic() - time.perf_counter()")
