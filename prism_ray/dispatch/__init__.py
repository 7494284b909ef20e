"""The dispatcher: credit, pool and rounds between a policy and its replicas. Pure; knows no transport.

A policy orders what waits (`prism_ray.scheduling`), a placement names the replica served next
(`prism_ray.placement`); the dispatcher asks them in rounds, admits what each replica's credit and
pool allow, and keeps the books of everything that is waiting or sent. The Serve actor and the
simulator drive the same object.
"""

from prism_ray.dispatch.dispatcher import Dispatcher, Place
from prism_ray.dispatch.exact_residency import ExactResidency
from prism_ray.dispatch.footprint import Footprint
from prism_ray.dispatch.plans import Dispatch, Refusal
from prism_ray.dispatch.predicted_residency import PredictedResidency
from prism_ray.dispatch.residency import Residency, ResidencyState
from prism_ray.dispatch.seat import Seat

__all__ = [
    "Dispatch",
    "Dispatcher",
    "ExactResidency",
    "Footprint",
    "Place",
    "PredictedResidency",
    "Refusal",
    "Residency",
    "ResidencyState",
    "Seat",
]
