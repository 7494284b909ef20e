"""One way to reach the telemetry server, for writer and readers. Knows neither keys nor values."""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

OUTAGE = (RedisError, OSError, asyncio.TimeoutError)
"""What a client raises when the server is away, slow, or wants another password."""


def connect(url: str, timeout_s: float) -> Redis:
    """A client that answers or raises within ``timeout_s`` a call: retrying is its user's business.

    ``url`` is ``redis://``, ``rediss://`` (with ``?ssl_ca_certs=FILE`` for a CA of one's own) or
    ``unix://``; the database is the path's number, for a socket ``?db=N``. ValueError for another.
    """
    return Redis.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
        health_check_interval=0,
    )


async def close(client: Redis) -> None:
    """Close the client; an unreachable server is no reason to fail."""
    with contextlib.suppress(*OUTAGE):
        await client.aclose()


def safe_url(url: str) -> str:
    """``url`` without user, password and options: for logs and for people.

    ValueError, which does not show it either, if it is none that ``connect`` takes.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise ValueError("the store's URL must begin with redis://, rediss:// or unix://")
    try:
        parts.port  # noqa: B018  (raises)
    except ValueError:
        raise ValueError("the store's URL has no valid port") from None
    if parts.scheme == "unix":
        return f"unix://{parts.path}"
    return f"{parts.scheme}://{parts.hostname or ''}:{parts.port or 6379}{parts.path}"
