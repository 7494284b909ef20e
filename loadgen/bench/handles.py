"""Serve handles for the process that runs a benchmark or a test, whatever Serve's mode."""

from __future__ import annotations

from typing import Any


def replica_handle(app: str = "default") -> Any:
    """The handle of an application's replicas; see ``driver_handle``."""
    return driver_handle("Replica", app)


def driver_handle(deployment: str, app: str) -> Any:
    """A deployment's handle that works with and without a running event loop.

    In Serve's faster modes a handle's router lives on the event loop that calls it first, which a
    driver ends long before Serve. Its own thread, as in the default mode, is no part of what is measured.
    """
    from ray import serve  # Serve reads its mode when it is imported

    handle: Any = serve.get_deployment_handle(deployment, app)
    if not handle.is_initialized:
        handle._init(_run_router_in_separate_loop=True)
    return handle
