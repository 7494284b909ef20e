"""Two processes that get the same requests evict the same nodes, whatever else differs: rank agreement."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SEEDED = """
import sys
from tests.faults.wall_clock import shift
step_s = float(sys.argv[1])
shift(None, step_s)  # before anything can keep a clock of its own
from loadgen.bench.tree_arms import CacheDriver, CacheRequest, build_cache, prepare_process
prepare_process()
from prism_ray.dart import AnchorMark, NodeKind
from prism_ray.dart.hints import dump_demand
from prism_ray.model import Demand, DemandTable
cache = build_cache("dart", 600, context=256)
driver, gone = CacheDriver(cache), []
cache.tree_core.evicted = lambda node: gone.append((node.start, node.end, (node.segment or b"").hex()))
for turn in range(60):
    shift(None, step_s * (turn + 1))
    docs = [(turn * 7 + i * i) % 11 for i in range(3)]
    names = [bytes([d]) * 16 for d in docs]
    ids = [d * 1000 + i for d in docs for i in range(40)] + [turn + 500_000]
    marks = [AnchorMark(40 * (i + 1), NodeKind.REUSABLE, n, n) for i, n in enumerate(names)]
    rows = tuple(Demand(bytes([d]) * 16, float((d * turn) % 5)) for d in range(11))
    if turn % 3 == 0:
        driver.match(CacheRequest(f"waits{turn}", ids, marks))
    driver.serve(CacheRequest(str(turn), ids, marks, dump_demand(DemandTable(turn, rows))))
cache.check_integrity()
print("EVICTED", gone)
"""


def test_two_processes_with_other_wall_clocks_and_hash_seeds_evict_the_same_nodes():
    """One clock stands right, the other is further in the past with every request."""
    paths = os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")])
    runs = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", SEEDED, step_s],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths},
        )
        for seed, step_s in (("1", "0"), ("2", "-86400"))
    ]
    outputs = [run.communicate(timeout=500)[0] for run in runs]
    evicted = [
        line for output in outputs for line in output.splitlines() if line.startswith("EVICTED")
    ]
    assert len(evicted) == 2
    assert evicted[0] == evicted[1]
    assert evicted[0].count("(") > 50
