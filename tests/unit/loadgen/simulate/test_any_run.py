"""What holds for every run, whatever the policy, the prompts and the engine's limits."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadgen.simulate import SimSpec, report, run
from loadgen.traces import Trace, TraceRequest
from prism_ray.model import Atom, Segment, Skeleton
from prism_ray.scheduling import POLICIES

DOCUMENTS = [Segment(f"d{n}".encode(), 10 + 3 * n, run=0) for n in range(6)]
NO_GAP = Atom(b"", 0)


@st.composite
def requests(draw: st.DrawFn) -> tuple[TraceRequest, ...]:
    asked = []
    for number in range(draw(st.integers(1, 14))):
        documents = tuple(
            DOCUMENTS[i] for i in draw(st.lists(st.integers(0, 5), max_size=4, unique=True))
        )
        system = Segment(b"s", 8) if draw(st.booleans()) else None
        skeleton = Skeleton(system, documents, (NO_GAP,) * len(documents), draw(st.integers(1, 30)))
        asked.append(TraceRequest(f"r{number}", skeleton, draw(st.integers(1, 12))))
    return tuple(asked)


@st.composite
def specs(draw: st.DrawFn) -> SimSpec:
    page = draw(st.sampled_from([1, 4]))
    return SimSpec(
        policy=draw(st.sampled_from(sorted(POLICIES))),
        retention=draw(st.sampled_from([None, "lru", "dart"])),
        replicas=draw(st.integers(1, 3)),
        qps=draw(st.sampled_from([2.0, 50.0, 1e5])),
        in_flight=draw(st.sampled_from([None, 1, 3])),
        plan_delay_s=draw(st.sampled_from([0.0, 0.004])),
        credit_delay_s=draw(st.sampled_from([0.0, 0.03])),
        tells_cache=draw(st.booleans()),
        engine_options={
            "pool_tokens": draw(st.sampled_from([220, 500, 5000])),
            "max_running": draw(st.integers(1, 6)),
            "chunked_prefill_tokens": draw(st.sampled_from([16, 64, None])),
            "page_size": page,
            "overlap": draw(st.booleans()),
            "output_reserve": draw(st.sampled_from([0.0, 0.7])),
        },
    )


@given(asked=requests(), spec=specs())
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_every_request_is_answered_in_order_of_its_stages_below_every_bound(
    asked: tuple[TraceRequest, ...], spec: SimSpec
) -> None:
    done = run(spec, Trace("drawn", 0, {}, asked))
    assert [s.ticket.request_id for s in done.served] == [r.request_id for r in asked]
    for served in done.served:
        moments = (
            served.arrival_s,
            served.decided_s,
            served.admitted_s,
            served.last_chunk_s,
            served.prefilled_s,
            served.first_token_s,
            served.finished_s,
        )
        assert None not in moments
        assert list(moments) == sorted(moments)  # type: ignore[type-var]
        assert 0 <= served.cached_tokens < served.ticket.skeleton.prompt_tokens
        assert sorted(served.order) == list(range(len(served.ticket.skeleton.segments)))
    result = report(done)  # raises BoundExceeded above B3
    assert result["b3_wait_s"] >= result["max_wait_s"]
    assert result["bounds"]["b3"] <= result["bounds"]["b0"] + 1e-12
    assert result["hit_rate"] <= result["bounds"]["b1"] + 1e-12
    assert result["hit_rate"] <= result["more_bounds"]["b4"] + 1e-12
    assert result["more_bounds"]["b4"] <= result["bounds"]["b1"] + 1e-12
    assert 0 <= result["more_bounds"]["b2"] <= result["bounds"]["b0"] + 1e-12
