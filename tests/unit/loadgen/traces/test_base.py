"""A trace says the same to everybody who asks it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from loadgen.traces import TRACES, Trace, TraceRequest, make_trace, trace_options
from prism_ray.model import NO_GAP, Atom, Segment, Skeleton
from prism_ray.registry import UnknownName


def request(name: str, *segments: bytes, private: int = 3, arrival_s: float = 0.0) -> TraceRequest:
    skeleton = Skeleton(
        None,
        tuple(Segment(s, 10, run=0) for s in segments),
        (NO_GAP,) * len(segments),
        private,
    )
    return TraceRequest(name, skeleton, 4, arrival_s=arrival_s)


def trace(*requests: TraceRequest) -> Trace:
    return Trace("t", 0, {}, requests)


def test_tokens_without_a_name_are_unique_to_their_request() -> None:
    one, other = request("a", b"x"), request("b", b"x")
    assert one.prompt()[0] == other.prompt()[0] == Atom(b"x", 10)
    assert one.prompt()[1] != other.prompt()[1]
    assert one.output_atoms != other.output_atoms
    assert one.output_atoms[0].tokens == 4


def test_named_tokens_must_be_as_many_as_the_request_has() -> None:
    skeleton = request("a", b"x").skeleton
    with pytest.raises(ValueError, match="named output is not 4"):
        TraceRequest("a", skeleton, 4, output=(Atom(b"o", 3),))
    with pytest.raises(ValueError, match="named rest is not 3"):
        TraceRequest("a", skeleton, 4, private=(Atom(b"p", 4),))


def test_a_prompt_is_written_in_the_order_that_is_asked_for() -> None:
    assert [a.id for a in request("a", b"x", b"y").prompt((1, 0))][:2] == [b"y", b"x"]


def test_the_hash_of_the_prompts_sees_prompts_and_outputs_but_no_arrivals() -> None:
    base = trace(request("a", b"x"), request("b", b"y"))
    same = trace(request("a", b"x", arrival_s=1.0), request("b", b"y", arrival_s=2.0))
    assert base.prompts_sha256 == same.prompts_sha256
    others = [
        trace(request("a", b"x"), request("b", b"z")),
        trace(request("b", b"y"), request("a", b"x")),
        trace(request("a", b"x", private=4), request("b", b"y")),
        trace(request("a", b"x", b"y"), request("b")),
    ]
    assert len({base.prompts_sha256, *(t.prompts_sha256 for t in others)}) == 5


def test_the_hash_of_the_prompts_sees_what_may_move() -> None:
    def of(run: int | None) -> str:
        skeleton = Skeleton(None, (Segment(b"x", 10, run=run),), (NO_GAP,), 3)
        return trace(TraceRequest("a", skeleton, 4)).prompts_sha256

    assert len({of(None), of(0), of(1)}) == 3


def test_a_traces_own_times_start_at_zero_and_can_be_scaled_to_a_rate() -> None:
    timed = trace(*(request(str(n), b"x", arrival_s=5 + n * n) for n in range(4)))
    assert timed.arrivals("trace") == [0, 1, 4, 9]
    assert timed.arrivals("trace", rate=3.0) == pytest.approx([0, 1 / 9, 4 / 9, 1])


def test_times_that_do_not_ascend_are_refused() -> None:
    back = trace(request("a", b"x", arrival_s=2.0), request("b", b"x", arrival_s=1.0))
    with pytest.raises(ValueError, match="do not ascend"):
        back.arrivals("trace")


def test_traces_import_nothing_heavy() -> None:
    heavy = ("ray", "torch", "sglang", "redis", "fastapi", "transformers")
    lazy = ("tokenizers", "datasets", "matplotlib")
    script = (
        "import sys, loadgen.traces, loadgen.trace_cmd\n"
        "loadgen.traces.make_trace('zipf_hotspot', count=9)\n"
        f"print([m for m in {heavy + lazy!r} if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stdout.strip() == "[]", found.stderr


def test_arrivals_that_cannot_be_had_are_refused_with_the_reason() -> None:
    untimed = trace(request("a", b"x"), request("b", b"y"))
    with pytest.raises(ValueError, match="no times of its own"):
        untimed.arrivals("trace")
    with pytest.raises(ValueError, match="need a rate"):
        untimed.arrivals("poisson")
    with pytest.raises(ValueError, match=r"known: .*poisson.*trace"):
        untimed.arrivals("never", 1.0)


def test_tickets_carry_arrivals_and_the_length_of_the_answer() -> None:
    tickets = trace(request("a", b"x"), request("b", b"y")).tickets([0.5, 1.5])
    assert [(t.request_id, t.arrival_s, t.max_new_tokens) for t in tickets] == [
        ("a", 0.5, 4),
        ("b", 1.5, 4),
    ]


def test_unknown_traces_and_options_are_refused_with_those_that_exist() -> None:
    with pytest.raises(UnknownName, match="zipf_hotspot"):
        make_trace("nope")
    with pytest.raises(ValueError, match=r"no option colour; it has .*output_tokens"):
        make_trace("zipf_hotspot", colour=1)
    assert "output_tokens" in trace_options("zipf_hotspot")
    assert "zipf_hotspot" in TRACES


def test_the_seed_decides_and_a_shorter_trace_is_the_front_of_a_longer_one() -> None:
    long = make_trace("zipf_hotspot", seed=1, count=50)
    assert make_trace("zipf_hotspot", seed=1, count=20).requests == long.requests[:20]
    assert make_trace("zipf_hotspot", seed=2, count=50).prompts_sha256 != long.prompts_sha256
