"""What a QAS actor leaves to the next one: E2's histograms and the view of the replicas' caches.

Makes the checkpoints and gives their parts back, replica by replica as these say hello; moves no
bytes. A part is for the same life of an engine only: another one has an empty cache.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from prism_ray.dispatch import Dispatcher
from prism_ray.dispatch import checkpoint as view_checkpoint
from prism_ray.placement import e2_checkpoint
from prism_ray.placement.base import CheckpointError, UnknownCheckpoint
from prism_ray.placement.e2 import E2
from prism_ray.serving.meters import Meters

logger = logging.getLogger(__name__)

YOUNG_S = 180.0
"""What is older than this is of no use: E2's window has passed, and caches hold something else."""

PLACEMENT = "e2"
VIEW = "view"
CHECKPOINTS = (VIEW, PLACEMENT)
"""Names under which they are stored. The view comes first: E2's belief is held against it."""


class WarmRestart:
    """See the module. ``meters`` counts what was ignored, by reason, and what was taken over."""

    def __init__(self, dispatcher: Dispatcher, meters: Meters, clock: Callable[[], float]) -> None:
        self._dispatcher = dispatcher
        self._meters = meters
        self._clock = clock
        self._views: dict[str, view_checkpoint.SavedView] = {}
        self._placements: dict[str, tuple[str, e2_checkpoint.SavedReplica]] = {}
        self._parts: dict[str, list[Any]] = {}
        self._looked_at = ""
        self._restored: set[str] = set()
        self._made_s = dict.fromkeys(CHECKPOINTS, -math.inf)

    # -- the one that goes ----------------------------------------------------------------------

    def look(self) -> None:
        """Note what one replica's cache holds: each in turn, so that no call takes long."""
        seats = self._dispatcher.seats
        self._parts = {name: part for name, part in self._parts.items() if name in seats}
        if seats:
            names = sorted(seats)
            self._looked_at = next((name for name in names if name > self._looked_at), names[0])
            seat = seats[self._looked_at]
            self._parts[seat.replica] = view_checkpoint.remember(seat, len(seats))

    def checkpoints(self, at_unix_s: float) -> dict[str, dict[str, Any]]:
        """Values by name: E2's of now, the view as ``look`` saw it; none while there is no replica."""
        seats = self._dispatcher.seats
        if not seats:
            return {}
        found = {VIEW: view_checkpoint.checkpoint(self._parts.values())}
        placement = self._dispatcher.placement
        if isinstance(placement, E2):
            found[PLACEMENT] = e2_checkpoint.checkpoint(placement, self._clock())
            found[PLACEMENT]["incarnations"] = {
                row[0]: seats[row[0]].incarnation for row in found[PLACEMENT]["replicas"]
            }
        return {name: {"at_unix_s": at_unix_s, "value": value} for name, value in found.items()}

    # -- the one that comes ---------------------------------------------------------------------

    def offer(self, name: str, stored: Mapping[str, Any], now_unix_s: float) -> None:
        """A checkpoint that was found; ignored, and counted, if it is too old or cannot be read."""
        try:
            at_unix_s, value = stored.get("at_unix_s"), stored.get("value")
            if type(at_unix_s) is not float or not math.isfinite(at_unix_s):
                raise CheckpointError("nobody says of when it is")
            # Clocks of two machines differ a little.
            age_s = max(0.0, now_unix_s - at_unix_s)
            if age_s > YOUNG_S:
                self.ignore(name, "old")
                return
            self._read(name, value)
        except (UnknownCheckpoint, view_checkpoint.UnknownView) as error:
            self.ignore(name, "unknown_version", error)
        except (CheckpointError, view_checkpoint.ViewError) as error:
            self.ignore(name, "malformed", error)
        else:
            self._made_s[name] = self._clock() - age_s
            for replica in list(self._dispatcher.seats):
                self.joined(replica)

    def ignore(self, name: str, reason: str, error: Exception | None = None) -> None:
        """A checkpoint that is not used."""
        logger.warning("checkpoint %s of the former QAS is ignored: %s", name, error or reason)
        self._meters.add("prism_checkpoints_ignored_total", 1, reason)

    def joined(self, replica: str) -> None:
        """A replica can take work: it gets what it had, if it is in the same life."""
        seat = self._dispatcher.seats[replica]
        restored = False
        view = self._views.pop(replica, None)
        if view is not None and self._young(VIEW) and _same(view.incarnation, seat.incarnation):
            restored = view_checkpoint.restore(seat, view)
        incarnation, saved = self._placements.pop(replica, ("", None))
        placement = self._dispatcher.placement
        if (
            saved is not None
            and isinstance(placement, E2)
            and self._young(PLACEMENT)
            and _same(incarnation, seat.incarnation)
        ):
            now_s = self._clock()
            elapsed_s = now_s - self._made_s[PLACEMENT]
            restored |= e2_checkpoint.restore_replica(placement, replica, saved, now_s, elapsed_s)
        if restored and replica not in self._restored:  # the parts may come one after the other
            self._restored.add(replica)
            logger.info("replica %s is known from the former QAS", replica)
            self._meters.add("prism_replicas_restored_total")

    def _read(self, name: str, value: object) -> None:
        if name == VIEW:
            self._views = view_checkpoint.read(value)
            return
        saved = e2_checkpoint.read(value)
        incarnations = value.get("incarnations") if isinstance(value, Mapping) else None
        if not isinstance(incarnations, Mapping):
            raise CheckpointError("'incarnations' is no map")
        placement = self._dispatcher.placement
        if isinstance(placement, E2):
            e2_checkpoint.restore_costs(placement, saved)
            self._placements = {
                replica: (str(incarnations.get(replica, "")), own)
                for replica, own in saved.replicas.items()
            }

    def _young(self, name: str) -> bool:
        return self._clock() - self._made_s[name] <= YOUNG_S


def _same(one: str, other: str) -> bool:
    """Whether two lives of a line (``messages.Hello``) are of one life of the engine."""
    return one.rpartition(".")[0] == other.rpartition(".")[0]
