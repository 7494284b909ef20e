"""What a round writes for one replica: its plan, and a decision for each request in it.

What goes into it is chosen by the dispatcher and its policy.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from prism_ray.dispatch.seat import Seat, Sent
from prism_ray.model import Decision, DemandTable, Order, Pick, Plan, PlanEntry, Ticket
from prism_ray.placement import Choice


class Refusal(StrEnum):
    """Why a replica did not submit a planned request; the ingress decides whether it comes again."""

    OVER_CREDIT = "over_credit"
    LATE_BODY = "late_body"
    CLIENT_LEFT = "client_left"


class Dispatch(NamedTuple):
    """What one round decided for one replica."""

    plan: Plan
    decisions: tuple[Decision, ...]


class Given(NamedTuple):
    """What a round gave to a replica, and why it goes there."""

    pick: Pick
    sent: Sent
    choice: Choice


def write_plan(
    seat: Seat, given: list[Given], table: DemandTable, epoch: str, now_s: float
) -> Dispatch:
    """The seat's next plan: what it was given, in that order, and the demand that it shall keep.

    Raises ValueError for an order that is none of its ticket's prompt.
    """
    seat.plan_version += 1
    entries = tuple(
        PlanEntry(p.ticket.request_id, p.ticket.attempt, s.uncached_tokens) for p, s, _ in given
    )
    plan = Plan(seat.replica, epoch, seat.plan_version, entries, table)
    decisions = tuple(
        Decision(
            request_id=pick.ticket.request_id,
            attempt=pick.ticket.attempt,
            epoch=epoch,
            replica=seat.replica,
            plan_version=plan.version,
            position=position,
            order=_checked(pick.ticket, pick.order),
            lane=pick.lane,
            queue_s=now_s - pick.ticket.arrival_s,
            predicted_cached_tokens=pick.ticket.skeleton.prompt_tokens - sent.uncached_tokens,
            signature=pick.signature,
            score=pick.score,
            reason=f"{pick.reason}; {choice}",
        )
        for position, (pick, sent, choice) in enumerate(given)
    )
    return Dispatch(plan, decisions)


def _checked(ticket: Ticket, order: Order) -> Order:
    ticket.skeleton.check_order(order)
    return order
