"""Our own policy, ``prism``, pure: orders of segments planned over all that waits, and who goes when."""

from __future__ import annotations

from prism_ray.prism.params import PrismParams
from prism_ray.prism.policy import Prism

__all__ = ["Prism", "PrismParams"]
