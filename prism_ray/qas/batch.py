"""A replica's fixed batch: picks chosen together, which nobody who arrives later joins (choice A6).

Holds what is left of one batch within a round; forming it is the round's business, keeping what is left
until the next round the policy's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from prism_ray.model import Pick
from prism_ray.qas.window import Window

Standing = tuple[int, Pick]
"""A column of the window and the pick that its request was given when its batch was formed."""


class Batch:
    """What is left of a batch; ``drawn``: something of it was dispatched, so the rest stands."""

    def __init__(self, standing: list[Standing], *, drawn: bool) -> None:
        self._standing = standing
        self.drawn = drawn

    def left(self, taken: Collection[int]) -> list[Standing]:
        """In the batch's order, without columns that were taken since."""
        return [(column, pick) for column, pick in self._standing if column not in taken]


def stand_again(
    picks: tuple[Pick, ...], replica: str, window: Window, homes: Mapping[str, str] | None
) -> Batch:
    """The rest of an earlier round's batch: what still waits within reach, at home with the replica."""
    standing = []
    for pick in picks:
        request_id = pick.ticket.request_id
        column = window.column(pick.ticket)
        at_home = homes is None or homes.get(request_id) == replica
        if column is not None and at_home:
            standing.append((column, pick))
    return Batch(standing, drawn=True)
