"""Bounds: on the exact-prefix hit rate of a set of prompts, on the tail of TTFT, and on latency.

Those on hits are shares of the prompts' tokens. Each says what it leaves free: the order of requests,
the order of segments, the pool. All are for an engine that matches whole pages and computes at least
a prompt's last token. Pure; numpy only.
"""

from loadgen.bounds.beside import bounds_beside, bounds_in_words
from loadgen.bounds.blocks import Block, Prompt, path_blocks, segment_blocks
from loadgen.bounds.hit_rates import B1_REQUESTS_MAX, b0, b1, b2, b3, b4
from loadgen.bounds.latency import LatencyFloor, latency_floor
from loadgen.bounds.tail import least_p99_s

__all__ = [
    "B1_REQUESTS_MAX",
    "Block",
    "LatencyFloor",
    "Prompt",
    "b0",
    "b1",
    "b2",
    "b3",
    "b4",
    "bounds_beside",
    "bounds_in_words",
    "latency_floor",
    "least_p99_s",
    "path_blocks",
    "segment_blocks",
]
