"""From a config's ``tenants`` and ``limits`` to the scheduler and the books of what waits."""

from __future__ import annotations

from collections.abc import Callable

from prism_ray.config import PrismConfig
from prism_ray.policies import make_fair_scheduler
from prism_ray.tenancy import FairScheduler, QueueLimits, TenantQueues, TenantWeights


def fair_scheduler(config: PrismConfig) -> FairScheduler:
    """The config's policy for each tenant, taking turns by the config's weights."""
    tenants, scheduler = config.tenants, config.scheduler
    weights = TenantWeights(tenants.weights, tenants.default_weight)
    return make_fair_scheduler(scheduler.policy, scheduler.params, weights)


def queue_limits(config: PrismConfig) -> tuple[QueueLimits, QueueLimits]:
    """What all tenants together may let wait, and each by itself: its cap, or all of it."""
    tenants, limits = config.tenants, config.limits
    window = QueueLimits(limits.queue_requests, limits.queue_tokens)
    cap = QueueLimits(
        min(tenants.queue_requests or window.requests, window.requests),
        min(tenants.queue_tokens or window.tokens, window.tokens),
    )
    return window, cap


def byte_weights(config: PrismConfig) -> Callable[[str], float]:
    """Weights by tenant's name, for what an ingress holds."""
    named, default = dict(config.tenants.weights), config.tenants.default_weight
    return lambda tenant: named.get(tenant, default)


def tenant_queues(config: PrismConfig, scheduler: FairScheduler) -> TenantQueues:
    """Empty books with the config's limits and weights."""
    return TenantQueues(*queue_limits(config), scheduler.shares.weight)
