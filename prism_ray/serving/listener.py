"""Where Serve's HTTP listener is bound, as far as an ingress can know. Opens nothing."""

from __future__ import annotations

import ipaddress
import logging
from typing import Any

import ray
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

logger = logging.getLogger(__name__)


async def bound_to_loopback() -> bool:
    """Whether only this machine can reach the listener; False when that cannot be found out.

    Serve has no public way to ask, so the controller is asked as Serve's own client does. HAProxy
    and the ingress's own listener behind it are bound to the same address.
    """
    try:
        controller = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
        options: Any = await controller.get_http_config.remote()
        return is_loopback(options.host)
    except Exception as error:
        logger.warning("Serve's HTTP address is unknown (%s): admin endpoints are closed", error)
        return False


def is_loopback(host: str | None) -> bool:
    """Whether a listener bound to ``host`` is reachable from its own machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False
