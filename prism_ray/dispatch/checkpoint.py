"""The global view (what each replica's cache holds) as plain data for a warm restart.

Bounded, versioned, checked when read; knows no store and no clock. What comes back is a guess until
an engine that tells its cache has told it anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from prism_ray.dispatch.residency import Remembered
from prism_ray.dispatch.seat import Seat

VERSION = 1

ROWS_MAX = 4096
"""Rows of all replicas together; each replica gets an equal part."""
REPLICAS_MAX = 256
_NAME_CHARS_MAX = 256
_KEY_BYTES_MAX = 64
_TOKENS_MAX = 2**40


class ViewError(ValueError):
    """Plain data that should be a checkpoint of the view and is none."""


class UnknownView(ViewError):
    """A checkpoint of a version that this code does not read."""


@dataclass(frozen=True, slots=True)
class SavedView:
    """What was known of one replica: the incarnation that it was said by, and its cache."""

    incarnation: str
    exact: bool
    rows: tuple[Remembered, ...]


def remember(seat: Seat, replicas: int) -> list[Any]:
    """One replica's part: the newest of what it is believed to hold, where there are so many.

    Milliseconds for a predicted cache of some thousand nodes, so not for all of them at once.
    """
    rows = seat.residency.remember(ROWS_MAX // max(1, replicas))
    told = seat.capacity.tells_cache
    return [seat.replica, seat.incarnation, told, [list(row) for row in rows]]


def checkpoint(parts: Iterable[list[Any]]) -> dict[str, Any]:
    """The parts together, within the bounds even if they were made for fewer replicas."""
    left = ROWS_MAX
    found = []
    for replica, incarnation, told, rows in islice(parts, REPLICAS_MAX):
        found.append([replica, incarnation, told, rows[:left]])
        left -= len(found[-1][3])
    return {"version": VERSION, "replicas": found}


def read(data: object) -> dict[str, SavedView]:
    """Check a checkpoint. UnknownView for another version, ViewError for a malformed one."""
    if not isinstance(data, Mapping):
        raise ViewError("a checkpoint of the view is a map")
    if data.get("version") != VERSION:
        raise UnknownView(f"version {data.get('version')!r} of the view's, this reads {VERSION}")
    replicas = data.get("replicas")
    if not isinstance(replicas, list) or len(replicas) > REPLICAS_MAX:
        raise ViewError("'replicas' is no list, or too long")
    found: dict[str, SavedView] = {}
    rows_left = ROWS_MAX
    for item in replicas:
        match item:
            case [str(name), str(incarnation), bool(exact), list(rows)]:
                rows_left -= len(rows)
            case _:
                raise ViewError("a replica's row is malformed")
        if rows_left < 0 or max(len(name), len(incarnation)) > _NAME_CHARS_MAX or name in found:
            raise ViewError("a replica is there twice, or too much of it")
        read_rows = tuple(_row(row, number) for number, row in enumerate(rows))
        found[name] = SavedView(incarnation, exact, read_rows)
    return found


def restore(seat: Seat, saved: SavedView) -> bool:
    """Let a seat believe what was known of its replica; False if that was of another kind."""
    if saved.exact != seat.capacity.tells_cache:
        return False
    seat.residency.recall(saved.rows, seat.capacity.pool_tokens)
    return True


def _row(row: object, number: int) -> Remembered:
    if isinstance(row, list) and [type(value) for value in row] == [int, bytes, int]:
        before, key, tokens = row
        if -1 <= before < number and len(key) <= _KEY_BYTES_MAX and 0 <= tokens <= _TOKENS_MAX:
            return Remembered(before, key, tokens)
    raise ViewError("a row of a replica's cache is malformed")
