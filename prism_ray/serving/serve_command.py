"""``prism-ray serve``: the application on this machine, behind HAProxy, reachable from here only.

``serve run prism_ray.app`` does the same in whatever mode its environment says; but with HAProxy it
listens on every address (Serve ignores its own host setting there), which this command does not.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import tempfile
import threading
from pathlib import Path
from types import FrameType

import click

from prism_ray.serving.serve_mode import (
    FALLBACK_PORT,
    METRICS_PORT,
    SERVE_MODES,
    STATS_PORT,
    haproxy_environment,
    mode_environment,
    set_environment,
)

DRAIN_S = "1"
"""Seconds an ingress stays after it was told to stop: no load balancer has to notice here."""


@click.command("serve")
@click.argument("config", required=False, metavar="[FILE-OR-PRESET]")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(1, 65535))
@click.option("--mode", default="haproxy", show_default=True, type=click.Choice(SERVE_MODES))
def serve_command(config: str | None, host: str, port: int, mode: str) -> None:
    """Start Ray and the application on this machine; Ctrl-C ends both."""
    _check_free(host, port)
    with tempfile.TemporaryDirectory(prefix="prism-serve-") as scratch:
        try:
            side = _haproxy(Path(scratch)) if mode == "haproxy" else {}
        except FileNotFoundError as error:
            raise click.ClickException(f"{error}; or --mode stock") from None
        draining = {"RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": DRAIN_S}
        set_environment({**mode_environment(mode), **side, **draining})
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
        with contextlib.suppress(KeyboardInterrupt):
            _run(config, host, port)


def _check_free(host: str, port: int) -> None:
    """Serve would start everything, and then say in a log that nothing can reach it."""
    try:
        with socket.create_server((host, port)):
            return
    except OSError as error:
        message = f"cannot listen on {host}:{port}: {error.strerror or error}; see --port"
        raise click.ClickException(message) from None


def _haproxy(scratch: Path) -> dict[str, str]:
    """Serve's variables for HAProxy; ports that the environment names already stay as they are."""

    def port(variable: str, default: int) -> int:
        return int(os.environ.get(variable, default))

    return haproxy_environment(
        scratch,
        metrics_port=port("RAY_SERVE_HAPROXY_METRICS_PORT", METRICS_PORT),
        stats_port=port("RAY_SERVE_HAPROXY_STATS_PORT", STATS_PORT),
        fallback_port=port("RAY_SERVE_FALLBACK_PROXY_HTTP_PORT", FALLBACK_PORT),
    )


def _run(config: str | None, host: str, port: int) -> None:
    import ray  # Serve reads its mode when it is imported: not before the environment is set
    from ray import serve

    from prism_ray.application import build

    application = build({} if config is None else {"config": config})
    ray.init(address="local", namespace="serve")
    try:
        serve.start(http_options={"host": host, "port": port})
        serve.run(application, route_prefix="/")
        _wait_for_interrupt()
    except RuntimeError as error:  # an engine that cannot start: Serve quotes what it said
        raise click.ClickException(f"the application did not start: {error}") from None
    finally:
        serve.shutdown()
        ray.shutdown()


def _wait_for_interrupt() -> None:
    """Until SIGINT or SIGTERM; a second one breaks off what follows.

    The handler raises nothing: an exception is lost when the signal meets a finalizer or a callback.
    """
    came = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        came.set()
        signal.signal(number, signal.default_int_handler)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, note)
    came.wait()
