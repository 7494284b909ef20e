"""Every option of QAS changes what happens, in the way its choice (A1-A21) says."""

from __future__ import annotations

from typing import Any

import pytest

from prism_ray.model import NO_GAP, Pick, Segment, Skeleton, Ticket
from prism_ray.qas import Qas

from .scenes import NoCache, add, dispatch, names, qas, spelled, take, ticket, written


def first_pick(scheduler: Qas) -> Pick:
    picks, _ = dispatch(scheduler, 1)
    return picks[0]


def order(requests: list[str], **params: Any) -> list[str]:
    """All requests in the order in which one round sends them."""
    scheduler = qas(q_cold=0, **params)
    add(scheduler, *requests)
    return names(dispatch(scheduler, len(requests))[0])


def test_front_alignment_writes_the_hottest_first_and_leaves_the_rest() -> None:
    scheduler = qas()
    add(scheduler, "q:abcde", "1:e", "2:ed", "3:edc")
    pick = next(p for p in dispatch(scheduler, 4)[0] if p.ticket.request_id == "q")
    assert written(pick) == "edcab"


def test_f_front_zero_leaves_every_prompt_as_written() -> None:
    scheduler = qas(f_front=0)
    add(scheduler, "q:abcde", "1:e", "2:ed", "3:edc")
    assert {p.order for p in dispatch(scheduler, 4)[0]} == {
        (0, 1, 2, 3, 4),
        (0,),
        (0, 1),
        (0, 1, 2),
    }


def test_f_front_bounds_the_front_block() -> None:
    scheduler = qas(f_front=1)
    add(scheduler, "q:abcde", "1:e", "2:ed", "3:edc")
    pick = next(p for p in dispatch(scheduler, 4)[0] if p.ticket.request_id == "q")
    assert written(pick) == "eabcd"


def test_original_front_order_moves_the_hottest_without_sorting_them() -> None:
    scheduler = qas(front_order="original")
    add(scheduler, "q:abcde", "1:e", "2:ed", "3:edc")
    pick = next(p for p in dispatch(scheduler, 4)[0] if p.ticket.request_id == "q")
    assert written(pick) == "cdeab"


def test_segments_move_only_inside_their_run() -> None:
    runs = [None, 0, 0, 1, None, 1]
    segments = tuple(
        Segment(s.encode(), 10, run=run) for s, run in zip("abcdef", runs, strict=True)
    )
    scheduler = qas(q_cold=0)
    scheduler.add(Ticket("q", Skeleton(None, segments, (NO_GAP,) * 6, 5), 0.0))
    add(scheduler, "1:f", "2:fc", "3:fcee", "4:f")
    pick = next(p for p in dispatch(scheduler, 5)[0] if p.ticket.request_id == "q")
    assert written(pick) == "acbfed"
    assert spelled(pick.signature) == "f"


def test_the_order_is_frozen_when_the_request_is_dispatched() -> None:
    scheduler = qas()
    add(scheduler, "q:ab", "1:b")
    opened = scheduler.open_round({"r": object()})  # type: ignore[dict-item]
    pick = opened.peek("r")
    assert pick is not None
    opened.take("r", pick)
    opened.close()
    add(scheduler, "2:a", "3:a")
    assert written(pick) == "ba"


@pytest.mark.parametrize(("realign", "expected"), [("round", "ba"), ("arrival", "ab")])
def test_realign_says_whether_waiting_requests_follow_the_demand(
    realign: str, expected: str
) -> None:
    scheduler = qas(realign=realign)
    add(scheduler, "q:ab")
    add(scheduler, "1:b", "2:b")
    assert written(first_pick(scheduler)) == expected


def test_kappa_splits_buckets_and_writes_signatures_in_serialized_order() -> None:
    requests = ["1:ab", "2:ac", "3:ba", "4:ca"]
    assert order(requests, kappa=1) == ["1", "2", "3", "4"]
    scheduler = qas(kappa=2, q_cold=0)
    add(scheduler, *requests)
    picks, _ = dispatch(scheduler, 4)
    assert names(picks) == ["1", "3", "2", "4"]
    assert [spelled(p.signature) for p in picks] == ["ab", "ab", "ac", "ac"]


def test_a_signature_is_written_as_the_prompt_is_not_by_strength() -> None:
    scheduler = qas(kappa=2, front_order="original")
    add(scheduler, "q:abc", "1:c", "2:cb", "3:c")
    pick = next(p for p in dispatch(scheduler, 4)[0] if p.ticket.request_id == "q")
    assert spelled(pick.signature) == "bc"


def test_requests_without_segments_share_the_empty_signature() -> None:
    scheduler = qas(q_cold=0)
    add(scheduler, "1:", "2:a", "3:")
    picks, tables = dispatch(scheduler, 3)
    assert [(p.ticket.request_id, p.signature) for p in picks][1:] == [("1", ()), ("3", ())]
    assert [row.segment for row in tables["r"].rows] == [b"a"]
    scheduler.check_integrity()


def test_fixed_segments_give_a_signature_and_keep_their_order() -> None:
    scheduler = qas()
    scheduler.add(ticket("q", "abc", run=None))
    add(scheduler, "1:c", "2:c")
    pick = next(p for p in dispatch(scheduler, 3)[0] if p.ticket.request_id == "q")
    assert pick.order == (0, 1, 2)
    assert spelled(pick.signature) == "c"


def test_union_utility_is_diluted_by_other_segments_and_signature_utility_is_not() -> None:
    requests = ["1:b", "2:ax", "3:ay", "4:az", "5:b"]
    weights = {"w_active": 0.0, "w_next": 0.0, "alpha_size": 0.0}
    assert order(requests, bucket_segments="union", **weights)[0] == "1"  # U(b) = 2 against 6/4
    assert order(requests, bucket_segments="signature", **weights)[0] == "2"  # 3 against 2


def test_the_scores_are_equation_12() -> None:
    scheduler = qas(w_next=10.0, q_cold=0)
    add(scheduler, "1:ab", "2:ac")
    pick = first_pick(scheduler)
    # R_b = {a, b, c}: G = 2, 1, 1 and N = 2, 1, 1 over both requests; |T| = 2
    assert pick.score == 2 + 0.5 * ((2 + 1 + 1) + 10 * (2 + 1 + 1)) / 3


def test_n_is_taken_over_the_hot_share_only() -> None:
    scheduler = qas(w_next=10.0, q_cold=3, batch_max=4)
    add(scheduler, "1:ab", "2:ac")
    pick = first_pick(scheduler)
    assert pick.score == 2 + 0.5 * ((2 + 1 + 1) + 10 * (1 + 1)) / 3  # only request 1 is in B_hot


def test_the_weights_of_size_and_utility_decide_between_buckets() -> None:
    requests = ["1:a", "2:a", "3:bcd", "4:a", "5:bcd"]
    weights = {"w_next": 0.0, "w_global": 1.0}
    assert order(requests, alpha_size=1.0, beta_util=0.0, **weights)[0] == "1"
    requests = ["1:ax", "2:ay", "3:az", "4:b", "5:b"]
    assert order(requests, alpha_size=0.0, beta_util=1.0, **weights)[0] == "4"


def test_active_segments_pull_their_bucket_forward_by_their_weight() -> None:
    for w_active, expected in ((1e6, "hot"), (0.0, "big1")):
        scheduler = qas(w_active=w_active, w_next=0.0, q_cold=0)
        add(scheduler, "0:x")
        dispatch(scheduler, 1)
        add(scheduler, "big1:a", "big2:a", "hot:x")
        assert names([first_pick(scheduler)]) == [expected]


def test_weighted_priority_is_overruled_by_ten_next_uses_and_lexicographic_is_not() -> None:
    for priority, expected in (("weighted", "next"), ("lexicographic", "active")):
        scheduler = qas(priority=priority, q_cold=0)
        add(scheduler, "0:x")
        dispatch(scheduler, 1)
        add(scheduler, *(f"n{i}:a" for i in range(11)), "one:x")
        picked = first_pick(scheduler).ticket.request_id
        assert ("active" if picked == "one" else "next") == expected


def test_the_running_hot_batch_draws_buckets_that_share_with_it() -> None:
    # a: 3 requests. Then bx shares x with the batch that a filled, cy does not but is older.
    requests = ["old:cy", "1:ax", "2:ax", "3:ax", "new:bx"]
    params = {"w_active": 0.0, "w_global": 0.0, "w_next": 1.0, "alpha_size": 0.0}
    assert order(requests, hot_batch="bucket", kappa=2, **params) == ["1", "2", "3", "old", "new"]
    assert order(requests, hot_batch="running", kappa=2, **params) == ["1", "2", "3", "new", "old"]


def test_ties_in_score_go_to_the_bucket_with_the_oldest_request() -> None:
    assert order(["1:a", "2:b", "3:b", "4:a"]) == ["1", "4", "2", "3"]


def test_the_oldest_request_counts_by_its_place_in_the_queue_not_by_who_was_seen_first() -> None:
    scheduler = qas(q_cold=0)
    add(scheduler, "1:a", "2:b")
    scheduler.add(ticket("0", "c"), at_head=True)
    assert names(dispatch(scheduler, 3)[0]) == ["0", "1", "2"]


def test_signatures_of_waiting_requests_follow_the_demand() -> None:
    scheduler = qas(kappa=2, q_cold=0)
    add(scheduler, "q:abc", "1:a", "2:b")
    assert scheduler.describe()["buckets"][-1]["signature"] == ["doc a", "doc b"]
    add(scheduler, "3:c", "4:c")
    signatures = [bucket["signature"] for bucket in scheduler.describe()["buckets"]]
    assert ["doc c", "doc a"] in signatures
    assert ["doc a", "doc b"] not in signatures


def test_the_window_hides_younger_requests_but_their_demand_counts() -> None:
    requests = ["1:a", "2:b", "3:b", "4:b"]
    assert order(requests, window_max=None)[0] == "2"
    assert order(requests, window_max=1)[0] == "1"
    scheduler = qas(window_max=2, alpha_size=0.0, w_next=0.0, q_cold=0)
    add(scheduler, *requests)
    assert names([first_pick(scheduler)]) == ["2"], "G = 3 of b counts the two outside"


def test_a_round_ends_with_the_window() -> None:
    scheduler = qas(window_max=2)
    add(scheduler, "1:a", "2:a", "3:a")
    assert len(dispatch(scheduler, 3)[0]) == 2
    assert len(dispatch(scheduler, 3)[0]) == 1


@pytest.mark.parametrize(
    ("batch", "expected"),
    [("credit", ["4", "5", "6", "1", "3"]), ("fixed", ["3", "1", "4", "5", "6"])],
)
def test_who_arrives_later_waits_for_a_fixed_batch_to_go(batch: str, expected: list[str]) -> None:
    scheduler = qas(q_cold=0, batch_max=3, batch=batch, w_active=0.0, w_next=0.0)
    add(scheduler, "1:a", "2:b", "3:b")
    assert names(dispatch(scheduler, 1)[0]) == ["2"]
    add(scheduler, "4:c", "5:c", "6:c")
    assert names(dispatch(scheduler, 5)[0]) == expected


@pytest.mark.parametrize(("batch", "expected"), [("credit", "ba"), ("fixed", "ab")])
def test_a_fixed_batch_keeps_the_orders_that_it_was_given(batch: str, expected: str) -> None:
    scheduler = qas(q_cold=0, batch_max=2, batch=batch, w_active=0.0)
    add(scheduler, "1:ab", "2:ab")
    dispatch(scheduler, 1)
    add(scheduler, "3:b", "4:b")
    picks, _ = dispatch(scheduler, 3)
    assert written(next(pick for pick in picks if pick.ticket.request_id == "2")) == expected


def test_a_fixed_batch_shrinks_by_whom_it_loses() -> None:
    scheduler = qas(q_cold=0, batch_max=4, batch="fixed", w_active=0.0, w_next=0.0)
    add(scheduler, "1:a", "2:b", "3:b", "4:b")
    assert names(dispatch(scheduler, 1)[0]) == ["2"]
    scheduler.cancel("3")
    add(scheduler, "5:b", "6:b", "7:b")
    assert names(dispatch(scheduler, 1, replica="other")[0]) == ["4"]
    assert names(dispatch(scheduler, 3)[0]) == ["1", "5", "6"]


def test_a_fixed_batch_goes_only_as_far_as_it_is_at_home() -> None:
    scheduler = qas(q_cold=0, batch_max=3, batch="fixed", w_active=0.0, w_next=0.0)
    add(scheduler, "1:a", "2:b", "3:b")
    dispatch(scheduler, 1)
    opened = scheduler.open_round({"r": NoCache()}, homes={"1": "r", "3": "elsewhere"})
    assert names(take(opened, 3)) == ["1"]
    opened.close()


def test_looking_forms_no_batch() -> None:
    scheduler = qas(q_cold=0, batch_max=3, batch="fixed", w_next=0.0)
    add(scheduler, "1:a")
    opened = scheduler.open_round({"r": NoCache()})
    assert opened.peek("r")
    opened.close()
    add(scheduler, "2:b", "3:b")
    assert names(dispatch(scheduler, 3)[0]) == ["2", "3", "1"]


def test_a_fixed_batch_with_lanes_per_round_is_the_papers_hot_share_then_the_oldest() -> None:
    scheduler = qas(q_cold=1, batch_max=3, batch="fixed", lanes="per_round", w_active=0.0)
    add(scheduler, "1:a", "2:b", "3:b", "4:b", "5:b", "6:c")
    picks = [dispatch(scheduler, 1)[0][0] for _ in range(6)]
    assert names(picks) == ["2", "3", "1", "4", "5", "6"]
    assert [pick.lane.value for pick in picks] == ["hot", "hot", "cold"] * 2


def test_the_table_of_a_fixed_batch_plans_the_rest_of_it_first() -> None:
    scheduler = qas(q_cold=0, batch_max=3, batch="fixed", w_active=0.0, w_next=0.0)
    add(scheduler, "1:a", "2:b", "3:b")
    dispatch(scheduler, 1)
    add(scheduler, "4:c", "5:c", "6:c")
    _, tables = dispatch(scheduler, 1)
    assert {row.segment: row.next_use for row in tables["r"].rows} == {b"b": 0, b"a": 1, b"c": 2}


def test_a_pioneer_of_a_fixed_batch_goes_before_those_that_wait_for_it() -> None:
    scheduler = qas(q_cold=0, batch_max=3, batch="fixed", pioneer=True, w_active=0.0, w_next=0.0)
    add(scheduler, "1:b", "2:b", "3:c")
    assert names(dispatch(scheduler, 3)[0]) == ["1", "3", "2"]


@pytest.mark.parametrize(("active", "expected"), [("dispatched", "hot"), ("running", "big1")])
def test_a_dispatched_request_pulls_its_like_at_once_or_when_it_runs(
    active: str, expected: str
) -> None:
    scheduler = qas(active=active, w_next=0.0, q_cold=0)
    add(scheduler, "0:x")
    dispatch(scheduler, 1)
    add(scheduler, "big1:a", "big2:a", "big3:a", "hot:x")
    assert scheduler.describe()["buckets"][0]["signature"] == [f"doc {'ax'[expected == 'hot']}"]
    scheduler.check_integrity()
    scheduler.runs("0")
    assert names([first_pick(scheduler)]) == ["hot"]
    scheduler.check_integrity()


def test_what_does_not_run_yet_counts_as_queued_and_can_end_before_it_runs() -> None:
    scheduler = qas(active="running")
    add(scheduler, "0:x")
    dispatch(scheduler, 1)
    counts = scheduler.describe()["segments"][0]
    assert (counts["active"], counts["queued"]) == (0, 1)
    scheduler.runs("0")
    scheduler.runs("0")
    counts = scheduler.describe()["segments"][0]
    assert (counts["active"], counts["queued"]) == (1, 0)
    assert scheduler.finish("0")
    add(scheduler, "1:x")
    dispatch(scheduler, 1)
    assert scheduler.finish("1")
    scheduler.runs("1")
    scheduler.check_integrity()
