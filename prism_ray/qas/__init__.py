"""The paper's query-aware scheduler (QAS), pure: tickets in, ordered picks and demand tables out.

Importing this room registers the policy ``qas``. Nothing here knows credit, clocks or transports.
"""

from __future__ import annotations

from prism_ray.qas.params import QasParams
from prism_ray.qas.policy import Qas

__all__ = ["Qas", "QasParams"]
