"""Workload traces as skeletons and tickets, drawn from a seed; replaying them is somebody else's.

Importing this room registers every trace; data is read when one is made.
"""

from loadgen.traces import agents as agents
from loadgen.traces import azure as azure
from loadgen.traces import embodied as embodied
from loadgen.traces import loogle as loogle
from loadgen.traces import mooncake as mooncake
from loadgen.traces import programming as programming
from loadgen.traces import questions as questions
from loadgen.traces import retrieval as retrieval
from loadgen.traces import toolbench as toolbench
from loadgen.traces import videoqa as videoqa
from loadgen.traces import zipf_hotspot as zipf_hotspot
from loadgen.traces.base import TRACES, Trace, TraceRequest, make_trace, trace_options

__all__ = ["TRACES", "Trace", "TraceRequest", "make_trace", "trace_options"]
