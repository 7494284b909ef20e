"""Which replica a request goes to: strategies behind two small protocols and one registry. Pure.

*Turns* know no request: any replica with credit may take what comes next. *Homing* placements give
each waiting request a home, and a replica is offered only what is at home there; the order in which
a replica serves its own stays the policy's. Importing this room registers all of them.
"""

from prism_ray.placement import (
    cache_aware,
    consistent_hash,
    e2,
    power_of_two,
    prefix_affinity,
    turns,
)
from prism_ray.placement.base import (
    PLACEMENTS,
    Choice,
    Homing,
    Pacing,
    Path,
    Placement,
    ReplicaLoad,
    Turns,
    make_placement,
    placements_of,
)

__all__ = [
    "PLACEMENTS",
    "Choice",
    "Homing",
    "Pacing",
    "Path",
    "Placement",
    "ReplicaLoad",
    "Turns",
    "cache_aware",
    "consistent_hash",
    "e2",
    "make_placement",
    "placements_of",
    "power_of_two",
    "prefix_affinity",
    "turns",
]
