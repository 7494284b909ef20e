"""Bounds on the hit rate of a real run: what could have been hit of the prompts that it was given."""

from __future__ import annotations

from typing import NamedTuple

from loadgen.bounds import Prompt, b0, b3, bounds_beside
from loadgen.real.session import RealRun


class BoundExceeded(RuntimeError):
    """A run hit more than can be hit: the figures or the bound are wrong."""


class RealBounds(NamedTuple):
    """``b3`` is for the run's longest time from an arrival to a whole prompt in the pool, ``wait_s``."""

    b0: float
    b3: float
    wait_s: float


def run_bounds(
    run: RealRun, pool_tokens: int, page_size: int = 1, *, retracted: bool = False
) -> RealBounds:
    """B0 and B3 of the admitted requests, as they were written, for one engine's pool.

    A prompt is whole in the pool when its first token is there; at its request's end if that was
    given up before, or if requests were ``retracted`` and so brought theirs in again. Raises
    BoundExceeded if the run hit more than B3.
    """
    arrivals = {s.arrival.ticket.request_id: s.arrival for s in run.submissions}
    prompts: list[Prompt] = []
    wait_s = finish_s = 0.0
    for row in run.rows:
        if row.cached_tokens is None:
            continue
        assert row.finished_s is not None, f"{row.request_id} was admitted and never ended"
        arrival, came_s = arrivals[row.request_id], row.arrival_s
        whole_s = row.finished_s
        if row.first_token_s is not None and not retracted:
            whole_s = row.first_token_s
        prompts.append(Prompt(arrival.prompt(row.order), came_s, arrival.output))
        wait_s, finish_s = max(wait_s, whole_s - came_s), max(finish_s, row.finished_s - came_s)
    most = b3(prompts, pool_tokens, wait_s, page_size, finish_s=finish_s)
    if run.hit_rate > most + 1e-12:
        raise BoundExceeded(f"hit rate {run.hit_rate:.6f} is above B3 = {most:.6f}")
    return RealBounds(b0(prompts, page_size), most, wait_s)


def placed_bounds(run: RealRun, pool_tokens: int, replicas: int) -> dict[str, float | None]:
    """B0, B1 and B4 of what several engines admitted (``bounds_beside``), their pools together.

    B0 is of the prompts as they were written; a prompt counts as whole in the pool at its request's end.
    """
    arrivals = {s.arrival.ticket.request_id: s.arrival for s in run.submissions}
    served = [
        (row, arrivals[row.request_id])
        for row in run.rows
        if row.cached_tokens is not None and row.request_id in arrivals
    ]
    ends = [row.finished_s - row.arrival_s for row, _ in served if row.finished_s is not None]
    return bounds_beside(
        [Prompt(arrival.prompt(r.order), r.arrival_s, arrival.output) for r, arrival in served],
        movable=any(arrival.ticket.skeleton.runs for _, arrival in served),
        pool_tokens=pool_tokens * replicas,
        wait_s=max(ends, default=None),
    )
