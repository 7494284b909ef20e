"""The step model: who is batched with whom, what a batch can match, and where every token goes."""

from __future__ import annotations

import pytest

from prism_ray.dart import Anchor, NodeKind, Owner, path_keys
from prism_ray.engine.cost import CostModel
from prism_ray.engine.limits import StepParams
from prism_ray.engine.profile import load_profile
from prism_ray.engine.sequence import SimRequest
from prism_ray.engine.step_model import RequestTooLong, StepModel
from prism_ray.model import Atom, Demand, DemandTable, Outcome


def model(**params) -> StepModel:
    return StepModel(StepParams(**{"pool_tokens": 1000, "context_length": 1000} | params))


def request(name: str, front: str = "doc", front_tokens: int = 20, output: int = 3, **more):
    path = (Atom(front.encode(), front_tokens), Atom(b"private-" + name.encode(), 5))
    return SimRequest(name, path, (Atom(b"out-" + name.encode(), output),), **more)


def drain(m: StepModel, check: bool = True):
    """All steps until nothing is left: [(begun, end)]."""
    results = []
    while (result := m.step()) is not None:
        results.append(result)
        if check:
            m.check_integrity()
    assert len(m) == 0
    assert m.pool.held_tokens == 0
    assert m.pool.used_tokens == 0
    return results


def admitted(results) -> dict[str, int]:
    return {a.request_id: a.cached_tokens for r in results for a in r.begun.admitted}


def test_requests_of_one_batch_do_not_see_each_others_prefix_and_the_next_batch_does():
    m = model()
    m.submit(request("a"))
    m.submit(request("b"))
    first = m.step()
    assert {a.request_id: a.cached_tokens for a in first.begun.admitted} == {"a": 0, "b": 0}
    assert first.end.prefilled == ("a", "b")
    m.submit(request("c"))
    assert admitted(drain(m)) == {"c": 20}


def test_with_overlap_a_prefix_is_seen_one_batch_later_still():
    m = model(overlap=True)
    m.submit(request("a", output=9))
    begun = m.begin_step()
    assert [a.request_id for a in begun.admitted] == ["a"]
    m.end_step()
    m.submit(request("b", output=9))
    m.begin_step()  # a's decode, formed before; b's batch is formed now, after a's result
    m.end_step()
    assert [a.cached_tokens for a in m.begin_step().admitted] == [20]

    m = model(overlap=True, max_prefill_tokens=25)
    for name in "abc":
        m.submit(request(name, output=9))
    assert admitted([m.step() for _ in range(3)]) == {"a": 0, "b": 0, "c": 20}
    m = model(overlap=False, max_prefill_tokens=25)
    for name in "abc":
        m.submit(request(name, output=9))
    assert admitted([m.step() for _ in range(3)]) == {"a": 0, "b": 20, "c": 20}


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("page_size", [1, 4])
def test_every_request_gets_its_prefill_its_tokens_and_one_end(overlap, page_size):
    m = model(overlap=overlap, page_size=page_size, pool_tokens=150, chunked_prefill_tokens=16)
    for index in range(30):
        m.submit(request(f"r{index}", front=f"d{index % 4}", output=1 + index % 7))
    results = drain(m)
    names = [f"r{index}" for index in range(30)]
    tokens = [name for r in results for name in r.end.tokens]
    assert [tokens.count(name) for name in names] == [1 + i % 7 for i in range(30)]
    assert sorted(n for r in results for n in r.end.prefilled) == sorted(names)
    ended = {e.request_id: e for r in results for e in r.end.ended}
    assert [ended[n].output_tokens for n in names] == [1 + i % 7 for i in range(30)]
    assert {e.outcome for e in ended.values()} == {Outcome.FINISHED}
    assert sum(len(r.end.ended) for r in results) == 30
    assert admitted(results) == {n: ended[n].cached_tokens for n in names}
    assert m.prompt_tokens_total == 30 * 25
    assert m.cached_tokens_total == sum(admitted(results).values()) > 0


def test_requests_are_admitted_in_the_order_of_their_submission():
    m = model(max_running=2)
    for name in ("z", "a", "m", "b"):
        m.submit(request(name, output=2))
    order = [a.request_id for r in drain(m) for a in r.begun.admitted]
    assert order == ["z", "a", "m", "b"]


def test_waiting_prompts_go_before_decoding():
    m = model()
    m.submit(request("a", output=5))
    m.step()
    m.submit(request("b"))
    step = m.step()
    assert (step.begun.new_tokens, step.begun.decode_requests) == (5, 0)
    assert step.end.tokens == ("b",)
    assert m.step().begun.decode_requests == 2


def test_a_long_prompt_is_prefilled_in_chunks_and_the_rest_of_the_budget_goes_to_others():
    m = model(chunked_prefill_tokens=32)
    m.submit(request("long", front="x", front_tokens=45, output=1))  # 50 tokens
    m.submit(request("b", front="y", front_tokens=5, output=1))  # 10 tokens
    first, second = m.step(), m.step()
    assert (first.begun.new_tokens, first.end.tokens) == (32, ())
    assert [a.request_id for a in first.begun.admitted] == ["long"]
    assert second.begun.new_tokens == 18 + 10
    assert second.end.prefilled == ("long", "b")


def test_chunks_are_visible_to_others_once_the_next_chunk_is_formed():
    m = model(chunked_prefill_tokens=32)
    m.submit(request("a", front_tokens=60, output=1))
    m.step()
    m.submit(request("b", front_tokens=60, output=1))
    m.step()
    assert m.step().begun.new_tokens == 1 + 5  # b matched 60 of the 64 that a had prefilled
    m = model(chunked_prefill_tokens=None)
    m.submit(request("a", front_tokens=60, output=1))
    assert m.step().begun.new_tokens == 65


def test_the_input_budget_ends_a_batch_but_never_blocks_its_first_request():
    m = model(max_prefill_tokens=10)
    m.submit(request("a", front="a"))
    m.submit(request("b", front="b"))
    assert [m.step().begun.new_tokens for _ in range(2)] == [25, 25]


def test_retraction_sends_a_request_back_and_counts_its_cached_tokens_once():
    m = model(pool_tokens=90, output_reserve=0.0)
    m.submit(request("old", front="a", output=40))
    m.submit(request("new", front="b", output=40, max_new_tokens=40))
    results = drain(m)
    assert m.retractions >= 1
    assert len([a for r in results for a in r.begun.admitted]) == 2
    assert sorted(n for r in results for n in r.end.prefilled) == ["new", "old"]
    assert m.prompt_tokens_total == 50
    tokens = [name for r in results for name in r.end.tokens]
    assert (tokens.count("old"), tokens.count("new")) == (40, 40)


def test_the_retracted_one_has_the_least_output_and_waits_behind_the_queue():
    m = model(pool_tokens=80, output_reserve=0.0, max_running=2)
    m.submit(request("first", front="a", output=60, front_tokens=10))
    for _ in range(5):
        m.step()
    m.submit(request("second", front="b", output=30, front_tokens=10))
    m.submit(request("third", front="c", output=30, front_tokens=20))
    m.step()
    while m.retractions == 0:
        assert m.step() is not None
    assert m.running >= 1
    assert [s.id for s in m._waiting] == ["third", "second"]
    m.check_integrity()
    drain(m)


def test_of_two_with_equal_output_the_longer_prompt_is_retracted():
    m = model(pool_tokens=90, output_reserve=0.0)
    m.submit(request("long", front="a", front_tokens=30, output=30))
    m.submit(request("short", front="b", front_tokens=10, output=30))
    while m.retractions == 0:
        assert m.step() is not None
    assert [s.id for s in m._waiting] == ["long"]
    drain(m)


def test_output_reserve_keeps_admission_from_promising_the_same_room_twice():
    m = model(pool_tokens=90, output_reserve=1.0)
    m.submit(request("old", front="a", output=40))
    m.submit(request("new", front="b", output=40))
    drain(m)
    assert m.retractions == 0


def test_a_running_requests_prefix_is_never_evicted():
    m = model(pool_tokens=60)
    m.submit(request("a", front="a", output=10))
    m.step()
    m.submit(request("b", front="b", output=1))
    for _ in range(9):
        m.step()
        m.check_integrity()
        assert m.cache.peek((Atom(b"a", 20), Atom(b"private-a", 5)), 25) == 25
    drain(m)


def test_generated_tokens_are_cached_for_the_next_turn():
    m = model()
    first = request("a", output=6)
    m.submit(first)
    drain(m)
    turn = SimRequest("b", (*first.path, *first.output, Atom(b"more", 4)), (Atom(b"o", 1),))
    m.submit(turn)
    assert admitted(drain(m)) == {"b": 25 + 5}  # the last sampled token has no KV yet


@pytest.mark.parametrize("overlap", [False, True])
def test_aborting_at_any_moment_gives_everything_back(overlap):
    for moment in range(14):
        m = model(overlap=overlap, chunked_prefill_tokens=10, pool_tokens=80)
        m.submit(request("a", output=4))
        m.submit(request("b", output=4))
        ended = []
        for turn in range(14):
            if turn == moment:
                ended += [e for e in [m.abort("a"), m.abort("nobody")] if e]
            begun = m.begin_step()
            if turn == moment:
                ended += [e for e in [m.abort("b"), m.abort("b")] if e]
            if begun is not None:
                ended += m.end_step().ended
            m.check_integrity()
        assert sorted(e.request_id for e in ended) == ["a", "b"]
        assert len(m) == m.running == m.waiting == 0
        assert m.pool.used_tokens == m.pool.held_tokens == 0


def test_aborted_requests_emit_nothing_more():
    m = model()
    m.submit(request("a", output=9))
    m.step()
    m.begin_step()
    assert m.abort("a") is None
    end = m.end_step()
    assert end.tokens == ()
    assert [(e.outcome, e.output_tokens) for e in end.ended] == [(Outcome.ABORTED, 1)]


def test_what_can_never_fit_is_refused_at_submission():
    m = model(pool_tokens=30, context_length=1000)
    with pytest.raises(RequestTooLong, match="30 tokens"):
        m.submit(request("a", output=6))
    m.submit(request("a", output=5))
    with pytest.raises(ValueError, match="here already"):
        m.submit(request("a", output=5))
    assert len(drain(m)) == 5


def test_the_table_of_an_admitted_request_decides_what_is_evicted():
    def anchored(name: str, table: DemandTable | None = None) -> SimRequest:
        owner = Owner(NodeKind.REUSABLE, name.encode())
        return request(name, front=name, output=1, anchors=(Anchor(20, owner),), table=table)

    for kept, lost in (("a", "b"), ("b", "a")):
        m = model(pool_tokens=66)
        for name in ("a", "b"):
            m.submit(anchored(name))
            drain(m)
        rows = DemandTable(1, (Demand(kept.encode(), 1e6),))
        for later in (anchored("c", rows), anchored("d")):
            m.submit(later)
            drain(m)
        assert m.cache.peek((Atom(kept.encode(), 20), Atom(b"x", 1))) == 20
        assert m.cache.peek((Atom(lost.encode(), 20), Atom(b"x", 1))) == 0


@pytest.mark.parametrize("ending", ["aborted", "admitted"])
def test_of_equally_wanted_places_the_one_that_the_refused_head_needs_is_protected(ending):
    m = model(pool_tokens=100, protect_anchors=1)
    news = iter(range(9))

    def anchored(name: str, front: str, tokens: int, **more) -> SimRequest:
        place = Owner(NodeKind.REUSABLE, front.encode(), path_keys((Atom(front.encode(), 1),))[0])
        anchors = (Anchor(tokens, place),)
        return request(name, front=front, front_tokens=tokens, anchors=anchors, **more)

    def start(output: int) -> None:
        """Both documents are resident, and a request whose answer needs room brings a table."""
        for name, tokens in (("a", 20), ("b", 22)):
            m.submit(anchored(name, name, tokens, output=1))
            drain(m)
        table = DemandTable(next(news), (Demand(b"a", 1.0), Demand(b"b", 1.0)))
        m.submit(request("running", front="r", output=output, table=table))
        m.step()

    def protected() -> list[bytes]:
        return [node.segment for node in m.cache.tree if node.protected]

    start(output=30)
    m.submit(anchored("head", "b", 22, output=52))
    for _ in range(27):
        m.step()
    assert m.waiting == 1
    assert protected() == [b"b"]
    if ending == "aborted":
        m.abort("head")
    drain(m)
    start(output=40)
    drain(m)
    assert protected() == [b"a"]  # the shallow one, since nobody waits


def test_a_step_costs_what_is_in_it():
    cost = CostModel(base_s=1.0, new_token_s=0.1, decode_request_s=0.01, context_token_s=0.001)
    m = StepModel(StepParams(pool_tokens=1000), cost)
    m.submit(request("a", output=2))
    m.submit(request("b", output=2))
    assert m.step().begun.duration_s == pytest.approx(1.0 + 0.1 * 50)
    assert m.step().begun.duration_s == pytest.approx(1.0 + 0.01 * 2 + 0.001 * 52)
    assert m.step() is None


def test_steps_begin_and_end_in_turn():
    m = model()
    with pytest.raises(RuntimeError, match="no step"):
        m.end_step()
    m.submit(request("a"))
    m.begin_step()
    with pytest.raises(RuntimeError, match="not ended"):
        m.begin_step()


def test_flushing_needs_an_idle_engine():
    m = model()
    m.submit(request("a", output=1))
    assert not m.flush_cache()
    drain(m)
    assert m.flush_cache()
    assert m.cache.tree.total_tokens == 0


def test_refreshing_waiting_prefixes_saves_them_from_lru():
    def cached(refresh: bool) -> int:
        m = model(pool_tokens=110, retention="lru", refresh_waiting_prefixes=refresh, max_running=1)
        for name, front in (("warm", "doc"), ("newer", "other")):
            m.submit(request(name, front=front, output=1))
            drain(m)
        m.submit(request("long", front="x", output=45))  # evicts one of the two, after pass 33
        m.submit(request("late", front="doc", output=1))
        return admitted(drain(m))["late"]

    assert (cached(refresh=True), cached(refresh=False)) == (20, 0)


def test_profiles_have_names():
    assert load_profile("zero").cost.step_s(9, 9, 9) == 0
    with pytest.raises(ValueError, match="a800-llama2-13b, a800-qwen3-4b, step-25ms, zero"):
        load_profile("h100")


@pytest.mark.parametrize(
    "bad",
    [{"pool_tokens": 0}, {"max_running": 0}, {"output_reserve": 2}, {"chunked_prefill_tokens": 0}],
)
def test_impossible_limits_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        StepParams(**bad)
