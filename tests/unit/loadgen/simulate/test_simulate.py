from __future__ import annotations

import importlib
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadgen.cli import main
from loadgen.simulate import BadSpec, SimSpec, UnknownKnee, parse_settings, report, run, simulate
from loadgen.simulate.knees import keep_knee, kept_knee, nearest_knee
from loadgen.simulate.report import BoundExceeded
from loadgen.traces import Trace, TraceRequest
from prism_ray.engine.profile import BadProfile, Profile, load_profile
from prism_ray.model import Atom, Segment, SegmentKind, Skeleton
from prism_ray.registry import UnknownName

SMALL = SimSpec(policy="qas", requests=100, qps=40.0)


def document(name: str, tokens: int = 100, run: int | None = 0) -> Segment:
    return Segment(name.encode(), tokens, run=run)


def trace_of(*requests: TraceRequest) -> Trace:
    return Trace("small", 0, {}, requests)


def asked(name: str, *documents: Segment, private: int = 20, output: int = 4) -> TraceRequest:
    gaps = (Atom(b"", 0),) * len(documents)
    return TraceRequest(name, Skeleton(None, documents, gaps, private), output)


@pytest.mark.parametrize("policy", ["fcfs", "qas"])
def test_the_same_seed_gives_the_same_figures_and_another_seed_others(policy: str) -> None:
    spec = replace(SMALL, policy=policy)
    one = simulate(spec)
    assert simulate(spec) == one
    assert simulate(replace(spec, seed=1)) != one


def test_a_report_has_every_figure_and_no_request_is_lost() -> None:
    result = json.loads(json.dumps(simulate(SMALL)))
    names = (
        "policy retention placement replicas trace qps seed requests prompt_tokens cached_tokens "
        "hit_rate hit_rate_nonglobal ttft_s queue_wait_s prefill_s first_token_s latency_s tpot_s "
        "max_wait_s throughput_rps bounds efficiency efficiency_p99 simulated config git_commit hashes"
    )
    assert set(names.split()) <= set(result)
    for term in ("ttft_s", "queue_wait_s", "prefill_s", "first_token_s"):
        assert set(result[term]) == {"mean", "p50", "p90", "p95", "p99", "max"}
    assert set(result["latency_s"]) == {"mean", "p50", "p90", "p99"}
    assert set(result["bounds"]) == {"b0", "b1", "b3"}
    assert set(result["hashes"]) == {"prompts", "arrivals", "pool"}
    assert result["requests"] == 100
    assert (result["simulated"], result["retention"]) == (True, "dart")
    assert result["config"]["engine"]["pool_tokens"] == 400_000


def test_the_three_terms_of_ttft_add_up() -> None:
    result = simulate(SMALL)
    terms = (result[term]["mean"] for term in ("queue_wait_s", "prefill_s", "first_token_s"))
    assert sum(terms) == pytest.approx(result["ttft_s"]["mean"])
    assert result["max_wait_s"] == result["queue_wait_s"]["max"] > 0


def test_hits_stay_below_the_bounds_of_any_order() -> None:
    result = simulate(replace(SMALL, engine_options={"pool_tokens": 6000}))
    bounds = result["bounds"]
    assert 0 < result["hit_rate"] <= bounds["b3"] <= bounds["b0"] <= bounds["b1"]
    assert result["efficiency"] == pytest.approx(result["hit_rate"] / bounds["b3"])
    more = result["more_bounds"]
    assert result["hit_rate"] <= more["b2"] <= bounds["b3"]
    assert result["hit_rate"] <= more["b4"] <= bounds["b1"]


def test_a_replica_that_a_placement_leaves_out_computes_nothing() -> None:
    """One of four replicas takes all, so what all prompts start with is computed once."""
    made = run(replace(SMALL, policy="fcfs", replicas=4, placement="prefix-affinity"))
    assert len({served.replica for served in made.served}) == 1
    told = report(made)
    assert told["hit_rate"] <= told["bounds"]["b3"] == pytest.approx(told["bounds"]["b0"])


def test_b2_is_of_the_order_in_which_each_replica_admitted_its_own() -> None:
    """x, y, x, y through pools that hold one of them: one replica hits next to nothing, two hit both."""
    x, y = document("x", 100), document("y", 100)
    asks = [asked(f"r{n}", piece) for n, piece in enumerate((x, y, x, y))]
    spec = SimSpec(
        policy="fcfs",
        placement="round-robin",
        qps=0.1,
        arrivals="constant",
        engine_options={"pool_tokens": 130},
    )
    alone, two = (report(run(replace(spec, replicas=n), trace_of(*asks))) for n in (1, 2))
    # Beside a request of 124 tokens, its answer included, there is room for 6 of the other document.
    assert alone["more_bounds"]["b2"] * 480 == pytest.approx(12)
    assert two["more_bounds"]["b2"] * 480 == pytest.approx(200)


def test_b4_is_b3_where_nothing_may_move_and_neither_is_known_where_b1_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fixed = [Segment(name, 100) for name in (b"x", b"y")]
    trace = trace_of(*(asked(f"r{n}", fixed[n % 2]) for n in range(4)))
    done = run(SimSpec(policy="fcfs", qps=0.1, engine_options={"pool_tokens": 130}), trace)
    result = report(done)
    assert result["more_bounds"]["b4"] == result["bounds"]["b3"] < result["bounds"]["b1"]
    monkeypatch.setattr("loadgen.bounds.hit_rates.B1_REQUESTS_MAX", 3)
    moving = trace_of(*(asked(f"r{n}", document("d"), document("e")) for n in range(4)))
    many = report(run(SimSpec(policy="fcfs", qps=0.1), moving))
    assert many["bounds"]["b1"] is None
    assert many["more_bounds"] == {"b2": None, "b4": None}


def test_requests_that_no_replica_can_hold_are_refused_and_counted() -> None:
    shared = document("shared", 300)
    trace = trace_of(
        asked("fits", shared),
        asked("too long", shared, document("more", 900)),
        asked("fits exactly", shared, document("other", 680), private=16, output=4),
    )
    spec = replace(SMALL, policy="fcfs", requests=3, engine_options={"context_length": 1000})
    over = run(spec, trace)
    assert [s.ticket.request_id for s in over.served] == ["fits", "fits exactly"]
    assert len(over.arrivals_s) == 3
    result = report(over)
    assert (result["requests"], result["refused"]) == (2, 1)
    assert result["prompt_tokens"] == 320 + 996
    assert result["cached_tokens"] == 300
    assert "1 of 3 requests are refused" in result["notes"][-1]
    # Their prompts are in no bound either.
    assert result["bounds"]["b0"] == result["bounds"]["b3"] == pytest.approx(300 / (320 + 996))


def test_a_pool_smaller_than_the_context_refuses_too_and_a_trace_of_nothing_else_is_an_error() -> (
    None
):
    trace = trace_of(asked("long", document("d", 900)))
    spec = replace(SMALL, requests=1, engine_options={"pool_tokens": 500})
    with pytest.raises(ValueError, match="no request of small fits: a replica takes 500 tokens"):
        run(spec, trace)


def test_a_run_above_its_bound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    over = run(SMALL)
    reports = importlib.import_module("loadgen.simulate.report")
    monkeypatch.setattr(reports, "b3", lambda *_, **__: 0.01)
    with pytest.raises(BoundExceeded, match="is above B3"):
        report(over)


def test_the_bound_allows_for_the_longest_wait_of_the_run() -> None:
    """x and y do not fit together and are asked in turns: only those who wait can hit both."""
    x, y = document("x", 100), document("y", 100)
    trace = trace_of(asked("r0", x), asked("r1", y), asked("r2", x), asked("r3", y))
    spec = SimSpec(
        policy="lpm-uncapped",
        retention="dart",
        qps=1e4,
        arrivals="constant",
        in_flight=1,
        engine_options={"pool_tokens": 130},
        plan_delay_s=0.0,
        credit_delay_s=0.0,
    )
    result = report(run(spec, trace))
    assert result["hit_rate"] == pytest.approx(200 / 480)
    assert result["bounds"]["b3"] == pytest.approx(200 / 480)
    fixed = report(run(replace(spec, policy="fcfs"), trace))
    assert fixed["hit_rate"] == 0.0


def test_a_trace_may_come_at_its_own_times() -> None:
    timed = [replace(asked(f"r{n}", document("x")), arrival_s=7.0 + 2 * n) for n in range(5)]
    done = run(SimSpec(policy="fcfs", arrivals="trace"), trace_of(*timed))
    assert done.arrivals_s == (0.0, 2.0, 4.0, 6.0, 8.0)
    assert done.qps == pytest.approx(5 / 8)
    faster = run(SimSpec(policy="fcfs", arrivals="trace", qps=4.0), trace_of(*timed))
    assert faster.arrivals_s[-1] == pytest.approx(1.0)


def test_every_policy_gets_the_same_prompts_arrivals_and_machine() -> None:
    one, other = simulate(SMALL), simulate(replace(SMALL, policy="fcfs"))
    assert one["hashes"] == other["hashes"]
    changed = {
        "prompts": replace(SMALL, seed=1),
        "arrivals": replace(SMALL, qps=41.0),
        "pool": replace(SMALL, engine_options={"pool_tokens": 50_000}),
    }
    for name, spec in changed.items():
        assert simulate(spec)["hashes"][name] != one["hashes"][name]


def test_hits_beyond_the_global_prefix_are_counted_beyond_it() -> None:
    system = Segment(b"s", 100, SegmentKind.SYSTEM)
    first = Skeleton(system, (document("x", 60),), (Atom(b"", 0),), 40)
    other = Skeleton(system, (document("y", 60),), (Atom(b"", 0),), 40)
    trace = trace_of(*(TraceRequest(f"r{n}", s, 1) for n, s in enumerate((first, other, first))))
    result = report(run(SimSpec(policy="fcfs", qps=1.0, arrivals="constant"), trace))
    assert result["hit_rate"] == pytest.approx((100 + 160) / 600)
    assert result["hit_rate_nonglobal"] == pytest.approx(60 / 300)


def test_tools_that_may_trade_places_are_beyond_the_global_prefix() -> None:
    system = Segment(b"s", 100, SegmentKind.SYSTEM)

    def hit_rate_nonglobal(movable: bool) -> float | None:
        run_of = 0 if movable else None
        tools = tuple(Segment(n, 30, SegmentKind.TOOL, run=run_of) for n in (b"t", b"u"))
        skeleton = Skeleton(system, tools, (Atom(b"", 0),) * 2, 40)
        trace = trace_of(*(TraceRequest(f"r{n}", skeleton, 1) for n in range(2)))
        spec = SimSpec(policy="fcfs", qps=1.0, arrivals="constant")
        value: float | None = report(run(spec, trace))["hit_rate_nonglobal"]
        return value

    assert hit_rate_nonglobal(movable=False) == 0
    assert hit_rate_nonglobal(movable=True) == pytest.approx(60 / 200)


def test_a_later_turn_finds_what_was_generated_before_it() -> None:
    said = (Atom(b"said", 8),)
    first = TraceRequest("r0", Skeleton(None, (document("x"),), (Atom(b"", 0),), 0), 8, said)
    turn = Skeleton(None, (document("x"), Segment(b"said", 8)), (Atom(b"", 0),) * 2, 10)
    trace = trace_of(first, TraceRequest("r1", turn, 1))
    done = run(SimSpec(policy="fcfs", qps=0.5, arrivals="constant"), trace)
    # The last generated token is never an input of a step, so its KV is not there.
    assert [s.cached_tokens for s in done.served] == [0, 107]


def test_work_is_conserved_while_requests_wait() -> None:
    """A saturated engine is never idle: steps fill the time from the first arrival to the last end."""
    trace = trace_of(*(asked(f"r{n}", document(f"d{n}"), output=1) for n in range(40)))
    cost = {"base_s": 0.0, "new_token_s": 0.001, "decode_request_s": 0.0, "context_token_s": 0.0}
    spec = SimSpec(policy="fcfs", qps=1e6, cost_options=cost, plan_delay_s=0.0, credit_delay_s=0.0)
    for overlap in (True, False):
        done = run(replace(spec, engine_options={"overlap": overlap}), trace)
        span_s = max(s.finished_s or 0.0 for s in done.served) - done.arrivals_s[0]
        assert span_s == pytest.approx(40 * 120 * 0.001, rel=1e-6)


def test_delays_of_plans_and_credit_are_waited_for() -> None:
    trace = trace_of(asked("r0", document("x")))
    fast = report(run(replace(SMALL, plan_delay_s=0.0, credit_delay_s=0.0), trace))
    slow = report(run(replace(SMALL, plan_delay_s=0.5, credit_delay_s=0.0), trace))
    assert slow["ttft_s"]["mean"] - fast["ttft_s"]["mean"] == pytest.approx(0.5)
    assert slow["queue_wait_s"]["mean"] == pytest.approx(0.5)
    many = replace(SMALL, requests=250, qps=100.0)
    late = simulate(replace(many, credit_delay_s=0.3))
    assert late["ttft_s"]["mean"] > simulate(many)["ttft_s"]["mean"]


def test_in_flight_bounds_what_is_sent() -> None:
    one = run(replace(SMALL, in_flight=1))
    ordered = sorted(one.served, key=lambda s: s.decided_s or 0.0)
    for earlier, later in pairwise(ordered):
        assert (later.decided_s or 0.0) >= (earlier.finished_s or 0.0)


def test_a_retention_that_knows_the_future_keeps_the_most() -> None:
    """fcfs admits in the same order whatever is cached, so its future is known exactly."""
    spec = replace(SMALL, policy="fcfs", requests=200, engine_options={"pool_tokens": 5000})
    hits = {r: simulate(replace(spec, retention=r))["hit_rate"] for r in ("lru", "lfu", "belady")}
    assert hits["belady"] > max(hits["lru"], hits["lfu"])


def test_several_replicas_share_the_work() -> None:
    done = run(replace(SMALL, replicas=3, qps=100.0))
    assert {s.replica for s in done.served} == {"replica-0", "replica-1", "replica-2"}
    assert report(done)["placement"] == "least-loaded"


def test_options_go_to_the_part_that_they_name() -> None:
    options = parse_settings(
        ("policy.q_cold=8", "trace.output_tokens=1", "engine.overlap=false", "cost.base_s=1e-2")
    )
    spec = SMALL.with_options({**options, "in_flight": 7, "placement": "round-robin"})
    result = simulate(spec)
    assert result["config"]["policy_options"] == {"q_cold": 8}
    assert result["config"]["engine"]["overlap"] is False
    assert result["config"]["cost"]["base_s"] == 0.01
    assert (result["tpot_s"], result["placement"]) == (None, "round-robin")
    assert SMALL.with_options({"policy": "fcfs"}).policy == "fcfs"
    assert SMALL.with_options({"policy": {"q_cold": 0}}).policy_options == {"q_cold": 0}


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        (replace(SMALL, policy="best"), UnknownName, "unknown policy 'best'"),
        (replace(SMALL, trace="best"), UnknownName, "unknown trace 'best'"),
        (replace(SMALL, profile="h100"), BadProfile, "unknown profile 'h100'; known: a800"),
        (replace(SMALL, engine_options={"gpus": 2}), BadSpec, "gpus"),
        (replace(SMALL, cost_options={"base_s": -1}), BadSpec, "not negative"),
        (replace(SMALL, arrivals="tides"), ValueError, "unknown arrivals 'tides'"),
        (replace(SMALL, policy_options={"q": 1}), ValueError, "no parameter 'q'"),
    ],
)
def test_what_cannot_be_run_says_why(spec: SimSpec, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        simulate(spec)


@pytest.mark.parametrize(
    "bad", [{"replicas": 0}, {"qps": 0.0}, {"in_flight": 0}, {"plan_delay_s": -1.0}]
)
def test_impossible_numbers_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(BadSpec):
        replace(SMALL, **bad)  # type: ignore[arg-type]


def test_unknown_options_are_refused_with_those_that_exist() -> None:
    with pytest.raises(BadSpec, match=r"unknown option 'q_cold'; known: .*policy\.\*"):
        SMALL.with_options({"q_cold": 2})
    with pytest.raises(BadSpec, match="key=value"):
        parse_settings(("q_cold",))


def test_kept_knees_are_read_back_and_missing_ones_say_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "knees.json"
    keep_knee("t", "p", 2, {"qps": 12.5}, file=file)
    keep_knee("t", "p", 2, {"qps": 3.0}, {"k": 5}, file=file)
    assert kept_knee("t", "p", 2, file=file) == 12.5
    assert kept_knee("t", "p", 2, {"k": 5}, file=file) == 3.0
    with pytest.raises(UnknownKnee, match="--qps"):
        kept_knee("t", "p", 1, file=file)


def test_a_knee_that_is_not_kept_is_that_of_the_nearest_number_of_replicas_scaled(
    tmp_path: Path,
) -> None:
    file = tmp_path / "knees.json"
    keep_knee("t", "p", 1, {"qps": 10.0}, file=file)
    keep_knee("t", "p", 4, {"qps": 36.0}, file=file)
    keep_knee("t", "p", 2, {"qps": 3.0}, {"k": 5}, file=file)
    keep_knee("tt", "p x8", 1, {"qps": 5.0}, file=file)
    assert nearest_knee("t", "p", 4, file=file) == (36.0, "kept")
    assert nearest_knee("t", "p", 2, file=file) == (20.0, "scaled from 1 replica")
    assert nearest_knee("t", "p", 8, file=file) == (72.0, "scaled from 4 replicas")
    assert nearest_knee("t", "p", 1, {"k": 5}, file=file) == (1.5, "scaled from 2 replicas")
    for trace, profile, options in (("t", "q", {}), ("u", "p", {}), ("t", "p", {"k": 6})):
        with pytest.raises(UnknownKnee, match="--qps"):
            nearest_knee(trace, profile, 1, options, file)


def test_a_run_without_a_rate_says_what_its_rate_is_a_share_of() -> None:
    done = CliRunner().invoke(
        main, ["simulate", "--policy", "fcfs", "--replicas", "2", "--requests", "40"]
    )
    assert done.exit_code == 0, done.output
    assert "69.90/s (0.9 of the knee, scaled from 1 replica)" in done.output
    given = simulate(replace(SMALL, requests=20))
    kept = simulate(replace(SMALL, requests=20, qps=None))
    assert [run["config"]["knee"] for run in (given, kept)] == [None, "kept"]


def test_profiles_are_files_that_read_back(tmp_path: Path) -> None:
    profile = load_profile("a800-llama2-13b")
    assert profile.engine["pool_tokens"] == 50_000
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(profile.to_json()))
    assert load_profile(file) == profile
    assert load_profile(str(file)).params(page_size=16).page_size == 16
    file.write_text("{}")
    with pytest.raises(BadProfile):
        load_profile(file)
    with pytest.raises(BadProfile, match="unknown engine limits gpus"):
        Profile("x", profile.cost, {"gpus": 1})


def test_the_command_writes_json_and_prints_bounds_beside_the_hit_rate(tmp_path: Path) -> None:
    out = tmp_path / "runs" / "one.json"
    config = tmp_path / "options.yaml"
    config.write_text("policy:\n  q_cold: 4\nin_flight: 16\n")
    arguments = ["simulate", "--policy", "qas", "--qps", "30", "--requests", "60", "--seed", "3"]
    done = CliRunner().invoke(
        main, [*arguments, "--config", str(config), "--set", "policy.q_cold=8", "--out", str(out)]
    )
    assert done.exit_code == 0, done.output
    assert all(f"B{number}" in done.output for number in range(5))
    assert "simulated" in done.output
    written = json.loads(out.read_text())
    assert written["config"]["policy_options"] == {"q_cold": 8}
    assert written["config"]["in_flight"] == 16
    failed = CliRunner().invoke(main, [*arguments, "--set", "nonsense=1"])
    assert failed.exit_code == 1
    assert "unknown option 'nonsense'" in failed.output
