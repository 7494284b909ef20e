"""Bounds of real runs: of what was admitted, as it was written, for the time that it took."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadgen.real.bounds import BoundExceeded, run_bounds
from loadgen.real.cluster import RealArrival, Submission
from loadgen.real.rows import RealRow
from loadgen.real.session import RealRun
from prism_ray.model import NO_GAP, Decision, Lane, Segment, Skeleton, Ticket

SHARED, OTHER = Segment(b"shared", 80, run=0), Segment(b"other", 50, run=0)


def submission(name: str, at_s: float, *segments: Segment) -> Submission:
    skeleton = Skeleton(None, segments, (NO_GAP,) * len(segments), 20)
    arrival = RealArrival(Ticket(name, skeleton, at_s, max_new_tokens=2), 2)
    order = tuple(range(len(segments)))
    return Submission(
        name, arrival, Decision(name, 0, "e", "replica", 1, 0, order, Lane.HOT, 0.0, 0), None
    )


def run(*parts: tuple[Submission, int | None]) -> RealRun:
    """A run whose requests have so many cached tokens (None: never admitted); each takes a second."""
    rows = []
    for given, cached in parts:
        ticket = given.arrival.ticket
        row = RealRow(ticket.request_id, ticket.arrival_s, ticket.skeleton.prompt_tokens)
        row.order, row.cached_tokens = given.decision.order, cached
        if cached is not None:
            row.first_token_s, row.finished_s = ticket.arrival_s + 1, ticket.arrival_s + 2
        rows.append(row)
    return RealRun(tuple(rows), tuple(given for given, _ in parts), 0, {}, 9.0, 0.0)


ONE, FAR, AGAIN = (
    submission("one", 0.0, SHARED),
    submission("far", 10.0, OTHER),
    submission("again", 20.0, SHARED),
)


def test_a_pool_that_holds_all_bounds_by_what_is_shared() -> None:
    found = run_bounds(run((ONE, 0), (FAR, 0), (AGAIN, 80)), 1000)
    assert found.b0 == found.b3 == pytest.approx(80 / 270)
    assert found.wait_s == pytest.approx(1.0)


def test_a_pool_that_cannot_keep_it_bounds_by_less_and_more_is_an_error() -> None:
    assert run_bounds(run((ONE, 0), (FAR, 0), (AGAIN, 0)), 40).b3 == pytest.approx(40 / 270)
    with pytest.raises(BoundExceeded, match="above B3"):
        run_bounds(run((ONE, 0), (FAR, 0), (AGAIN, 80)), 40)


def test_requests_that_were_never_admitted_are_in_no_bound() -> None:
    found = run_bounds(run((ONE, 0), (FAR, 0), (AGAIN, None)), 1000)
    assert found.b0 == found.b3 == 0


def test_the_order_in_which_segments_were_written_counts() -> None:
    both = submission("both", 0.0, OTHER, SHARED)
    turned = replace_order(submission("turned", 20.0, OTHER, SHARED), (1, 0))
    assert run_bounds(run((both, 0), (turned, 0)), 1000).b0 == 0
    assert run_bounds(run((replace_order(both, (1, 0)), 0), (turned, 0)), 1000).b0 > 0.4


def test_a_request_that_was_given_up_counts_as_whole_at_its_end_and_so_do_all_after_retractions() -> (
    None
):
    given_up = run((ONE, 0), (FAR, 0))
    assert run_bounds(given_up, 1000).wait_s == pytest.approx(1.0)
    assert run_bounds(given_up, 1000, retracted=True).wait_s == pytest.approx(2.0)
    given_up.rows[1].first_token_s = None
    assert run_bounds(given_up, 1000).wait_s == pytest.approx(2.0)


def replace_order(given: Submission, order: tuple[int, ...]) -> Submission:
    return given._replace(decision=replace(given.decision, order=order))
