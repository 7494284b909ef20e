"""Tenants: who shares cache entries with whom, and how the dispatches are shared among them. Pure."""

from __future__ import annotations

from prism_ray.tenancy.fair import FairScheduler, TenantWeights
from prism_ray.tenancy.identity import DEFAULT_TENANT, TenantScope
from prism_ray.tenancy.queues import QueueLimits, TenantQueues

__all__ = [
    "DEFAULT_TENANT",
    "FairScheduler",
    "QueueLimits",
    "TenantQueues",
    "TenantScope",
    "TenantWeights",
]
