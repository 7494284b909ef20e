"""How many replicas the work needs. Pure; Ray Serve's side of it is ``serving.autoscaling``."""

from __future__ import annotations

from prism_ray.scaling.target import ReplicaWork, Targets, replicas_wanted
from prism_ray.scaling.work_meter import WorkMeter

__all__ = ["ReplicaWork", "Targets", "WorkMeter", "replicas_wanted"]
