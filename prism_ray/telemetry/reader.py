"""Reads telemetry back, for command line and live page. Writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from redis.asyncio import Redis
from redis.exceptions import RedisError

from prism_ray.telemetry import codec
from prism_ray.telemetry.codec import DecisionRow, ReplicaRow, SegmentRow
from prism_ray.telemetry.connection import OUTAGE, close, connect, safe_url
from prism_ray.telemetry.keys import STREAM_FIELD, Keys

T = TypeVar("T")

MAX_REPLICAS = 1024
"""More replica names than this are not read: the set may have been filled by somebody else."""

DOUBLES_MAX = 512
"""So many entries more are read of the stream, since a batch in an outage may be there twice."""


class StoreUnavailable(Exception):
    """The telemetry server does not answer, or refuses to."""


@dataclass(frozen=True, slots=True)
class StoreState:
    """What the store holds of one application.

    Replicas by name; segments by descending priority; decisions newest first. ``heartbeat_unix_s``
    is the writer's last sign of life, None when there is none. Values of another schema version and
    values that are none are left out and counted.
    """

    replicas: tuple[ReplicaRow, ...]
    segments: tuple[SegmentRow, ...]
    decisions: tuple[DecisionRow, ...]
    heartbeat_unix_s: float | None
    unknown_versions: int
    malformed: int


class _Decoding:
    """Decodes, or leaves out and counts."""

    def __init__(self) -> None:
        self.unknown_versions = 0
        self.malformed = 0

    def __call__(self, decode: Callable[[bytes], T], data: object) -> T | None:
        if data is None:
            return None
        try:
            if not isinstance(data, bytes):
                raise codec.CodecError(f"value is {type(data).__name__}")
            return decode(data)
        except codec.UnknownVersion:
            self.unknown_versions += 1
        except codec.CodecError:
            self.malformed += 1
        return None


async def read_state(
    url: str, app: str, *, namespace: str = "prism", decisions: int = 20, timeout_s: float = 2.0
) -> StoreState:
    """The state of application ``app`` with its newest ``decisions``; StoreUnavailable."""
    keys, decoding = Keys(app, namespace), _Decoding()
    client = connect(url, timeout_s)
    try:
        names = await client.zrange(keys.replicas, 0, MAX_REPLICAS - 1)
        replicas = await _replicas(client, keys, [_text(n) for n in names], decoding)
        segments = decoding(codec.decode_segments, await _get(client, keys.segments))
        entries = (
            await client.xrevrange(keys.decisions, count=decisions + DOUBLES_MAX)
            if decisions
            else []
        )
        heartbeat = await _get(client, keys.heartbeat)
    except OUTAGE as error:
        raise StoreUnavailable(f"{safe_url(url)}: {error or type(error).__name__}") from error
    finally:
        await close(client)
    field = STREAM_FIELD.encode()
    rows = (decoding(codec.decode_decision, (f or {}).get(field)) for _, f in entries or [])
    newest = tuple(islice(_once(r for r in rows if r is not None), decisions))
    return StoreState(
        replicas=tuple(sorted(replicas, key=lambda r: r.snapshot.replica)),
        segments=segments or (),
        decisions=newest,
        heartbeat_unix_s=_seconds(heartbeat),
        unknown_versions=decoding.unknown_versions,
        malformed=decoding.malformed,
    )


async def read_checkpoint(
    url: str, app: str, name: str, *, namespace: str = "prism", timeout_s: float = 2.0
) -> dict[str, Any] | None:
    """A checkpoint's value; None if there is none that this version reads; StoreUnavailable."""
    try:
        return await load_checkpoint(url, app, name, namespace=namespace, timeout_s=timeout_s)
    except codec.CodecError:
        return None


async def load_checkpoint(
    url: str, app: str, name: str, *, namespace: str = "prism", timeout_s: float = 2.0
) -> dict[str, Any] | None:
    """A checkpoint's value, None if there is none.

    Raises StoreUnavailable, ``codec.UnknownVersion``, and ``codec.CodecError`` for what is no value.
    """
    client = connect(url, timeout_s)
    try:
        data = await _get(client, Keys(app, namespace).checkpoint(name))
    except OUTAGE as error:
        raise StoreUnavailable(f"{safe_url(url)}: {error or type(error).__name__}") from error
    finally:
        await close(client)
    if data is None:
        return None
    if not isinstance(data, bytes):
        raise codec.CodecError(f"value is {type(data).__name__}")
    return codec.decode(data)


def _once(rows: Iterable[DecisionRow]) -> Iterator[DecisionRow]:
    """Each decision once: after an outage in the middle of a batch the writer writes it again."""
    seen: set[tuple[str, int, str]] = set()
    for row in rows:
        decision = row.decision
        name = decision.request_id, decision.attempt, decision.epoch
        if name not in seen:
            seen.add(name)
            yield row


async def _replicas(
    client: Redis, keys: Keys, names: list[str], decoding: _Decoding
) -> list[ReplicaRow]:
    if not names:
        return []
    values = await client.mget([keys.replica(name) for name in names])
    rows = [decoding(codec.decode_replica, value) for value in values]
    return [row for row in rows if row is not None]


async def _get(client: Redis, key: str) -> object:
    """A string's bytes; a key of another type is as good as none."""
    try:
        return await client.get(key)
    except RedisError as error:
        if "WRONGTYPE" in str(error):
            return None
        raise


def _text(name: object) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


def _seconds(data: object) -> float | None:
    try:
        return float(data) if isinstance(data, bytes) else None
    except ValueError:
        return None
