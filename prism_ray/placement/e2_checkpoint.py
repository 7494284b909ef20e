"""E2's histograms as plain data for a warm restart: written from one E2, read into another.

Bounded, versioned, checked when read; knows no store and no clock. What replication watches and what
waits unsent are not kept: the one is soon learnt anew, the other comes again with its requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from math import isfinite
from typing import Any

from prism_ray.model import Atom
from prism_ray.placement.base import CheckpointError, Path, UnknownCheckpoint
from prism_ray.placement.cost import Average
from prism_ray.placement.e2 import E2
from prism_ray.placement.e2_books import E2Book, E2Placed
from prism_ray.placement.forest import Forest, Node, Use

VERSION = 1

USES_MAX = 8192
"""Uses that a checkpoint sums up, the newest: both sides take tens of milliseconds for so many."""
BYTES_MAX = 160_000
"""About what the paths and their uses take as msgpack: the costliest; the rest is load without path."""
REPLICAS_MAX = 256
HELD_MAX = 2048
"""Prefixes that are held though nobody used them of late, over all replicas."""

_ATOM_BYTES, _USE_BYTES = 14, 56
_ID_BYTES_MAX = 64
_COUNT_MAX = 2**53
_SECONDS_MAX = 1e9


@dataclass(frozen=True, slots=True)
class Uses:
    """What one replica did on one path within H: ``count`` uses and their cost together, in seconds.

    ``oldest_s`` and ``newest_s`` are ages. A count of 0: the replica only holds it.
    """

    path: Path
    count: int
    cost_s: float
    decode_s: float
    oldest_s: float
    newest_s: float


@dataclass(slots=True)
class SavedReplica:
    """One replica's part: age in the placement, requests served, averages as (value, count)."""

    age_s: float
    served: int
    outputs: tuple[float, int]
    speed: tuple[tuple[float, int], tuple[float, int]]
    uses: list[Uses] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Costs:
    """State of the common cost model, as ``cost`` gives and takes it."""

    theta: tuple[float, ...]
    spread: tuple[float, ...]
    observations: int
    factor: tuple[float, int]
    decode: tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True)
class SavedE2:
    """A checkpoint that was read."""

    costs: Costs
    replicas: dict[str, SavedReplica]


# -- writing ------------------------------------------------------------------------------------


def checkpoint(e2: E2, now_s: float) -> dict[str, Any]:
    """The histograms of the last H, what is held, the replicas and the cost model; ages, no times."""
    books = [book for book in e2._books.by_name.values() if isinstance(book, E2Book)]
    books = sorted(books, key=lambda b: (-b.load_s, b.replica))[:REPLICAS_MAX]
    numbers = {book.replica: number for number, book in enumerate(books)}
    unsent = {p.use for p in e2._books.placed.values() if isinstance(p, E2Placed) and not p.sent}
    rows, span_s = _summed(e2.forest, numbers, unsent, now_s)
    paths = _Paths()
    uses: list[list[Any]] = []
    rest: dict[int, list[Any]] = {}
    for node, replica, *sums in chain(rows, _held(e2.forest, numbers)):
        if paths.bytes + _USE_BYTES * len(uses) <= BYTES_MAX:
            uses.append([paths.number(node), replica, *sums])
        elif sums[0]:
            _add(rest.setdefault(replica, [-1, replica, 0, 0.0, 0.0, 0.0, sums[4]]), sums)
    uses += rest.values()
    return {
        "version": VERSION,
        "costs": _costs(e2),
        "replicas": [_replica(book, now_s, span_s) for book in books],
        "atoms": paths.atoms,
        "uses": uses,
    }


def _add(rest: list[Any], sums: list[Any]) -> None:
    """Count uses as load of their replica alone, on the empty path."""
    for at, value in enumerate(sums[:3], start=2):
        rest[at] += value
    rest[5], rest[6] = max(rest[5], sums[3]), min(rest[6], sums[4])


def _summed(
    forest: Forest, numbers: Mapping[str, int], unsent: set[Use], now_s: float
) -> tuple[list[tuple[Node, int, int, float, float, float, float]], float | None]:
    """Uses by path and replica, the costliest first; and how far back they go, if not all of H."""
    sums: dict[tuple[Node, int], list[float]] = {}
    age_s = 0.0
    for use in islice(reversed(forest._uses), USES_MAX):
        age_s = max(0.0, now_s - use.at_s)
        number = numbers.get(use.shelf.replica)
        if number is None or not use.live or use in unsent:
            continue
        found = sums.get((use.node, number))
        if found is None:
            sums[use.node, number] = [1, use.cost_s, use.decode_s, age_s, age_s]
        else:
            found[0] += 1
            found[1] += use.cost_s
            found[2] += use.decode_s
            found[3] = age_s  # from new to old
    rows = [
        (node, number, int(n), cost_s, decode_s, oldest_s, newest_s)
        for (node, number), (n, cost_s, decode_s, oldest_s, newest_s) in sums.items()
    ]
    # The order of dict keys is that of the uses, so that equals keep one order.
    rows.sort(key=lambda row: -row[3])
    return rows, age_s if len(forest) > USES_MAX else None


def _held(
    forest: Forest, numbers: Mapping[str, int]
) -> Iterator[tuple[Node, int, int, float, float, float, float]]:
    """What replicas hold beyond what they used within H: the last used first."""
    each = max(1, HELD_MAX // max(1, len(numbers)))
    for replica, number in numbers.items():
        for node in islice(reversed(forest.shelves[replica].nodes), each):
            if not any(replica in child.holders for child in node.children.values()) and (
                replica not in node.shared
            ):
                yield node, number, 0, 0.0, 0.0, 0.0, 0.0


class _Paths:
    """Paths as one table of atoms, each with the row of the atom before it."""

    def __init__(self) -> None:
        self.atoms: list[list[Any]] = []
        self.bytes = 0
        self._rows: dict[tuple[int, bytes], int] = {}

    def number(self, node: Node) -> int:
        """Row of the last atom of the node; -1 for the root."""
        above: list[Node] = []
        while node.parent is not None:
            above.append(node)
            node = node.parent
        row = -1
        for each in reversed(above):
            for atom in each.atoms:
                place = row, atom.id
                known = self._rows.get(place)
                if known is None:
                    known = self._rows[place] = len(self.atoms)
                    self.atoms.append([row, atom.id, atom.tokens])
                    self.bytes += len(atom.id) + _ATOM_BYTES
                row = known
        return row


def _replica(book: E2Book, now_s: float, span_s: float | None) -> list[Any]:
    age_s = max(0.0, now_s - book.joined_s)
    # Where only the newest uses were summed up, they are a load of that time alone.
    age_s = age_s if span_s is None else min(age_s, span_s)
    outputs, speed = book.outputs, book.speed
    return [
        book.replica,
        age_s,
        book.served,
        list(outputs.state),
        [list(state) for state in speed.state],
    ]


def _costs(e2: E2) -> dict[str, Any]:
    fit, decode = e2.costs.fit, e2.costs.decode
    theta, spread = fit.state
    return {
        "theta": list(theta),
        "spread": list(spread),
        "observations": fit.observations,
        "factor": list(e2.costs.factor.state),
        "decode": [list(state) for state in decode.state],
    }


# -- reading ------------------------------------------------------------------------------------


def read(data: object) -> SavedE2:
    """Check a checkpoint. UnknownCheckpoint for another version, CheckpointError for a malformed one."""
    if not isinstance(data, Mapping):
        raise CheckpointError("a checkpoint of E2 is a map")
    if data.get("version") != VERSION:
        raise UnknownCheckpoint(f"version {data.get('version')!r} of E2's, this reads {VERSION}")
    costs = data.get("costs")
    if not isinstance(costs, Mapping):
        raise CheckpointError("'costs' is no map")
    return SavedE2(_read_costs(costs), _read_replicas(data))


def _read_costs(data: Mapping[str, Any]) -> Costs:
    theta = tuple(_real(v, -_SECONDS_MAX) for v in _list(data.get("theta"), 4))
    spread = tuple(_real(v, -_SECONDS_MAX) for v in _list(data.get("spread"), 16))
    if any(spread[5 * i] < 0 for i in range(4)):
        raise CheckpointError("a variance is negative")
    decode = tuple(_average(v) for v in _list(data.get("decode"), 5))
    if decode[1][1] and not decode[1][0] >= 1:
        raise CheckpointError("answers were decoded beside less than themselves")
    factor = _average(data.get("factor"))
    if factor[0] <= 0:
        raise CheckpointError("a speed is zero")
    return Costs(theta, spread, _count(data.get("observations")), factor, decode)


def _read_replicas(data: Mapping[str, Any]) -> dict[str, SavedReplica]:
    found: list[SavedReplica] = []
    names: list[str] = []
    for row in _list(data.get("replicas"), most=REPLICAS_MAX):
        name, age_s, served, outputs, speed = _list(row, 5)
        if not isinstance(name, str):
            raise CheckpointError("a replica's name is no text")
        seconds, predicted = (_average(state) for state in _list(speed, 2))
        if (predicted[1] and predicted[0] <= 0) or (seconds[1] and seconds[0] <= 0):
            raise CheckpointError("a speed is zero")
        names.append(name)
        found.append(
            SavedReplica(_real(age_s), _count(served), _average(outputs), (seconds, predicted))
        )
    if len(set(names)) != len(names):
        raise CheckpointError("a replica is there twice")
    paths = _read_paths(_list(data.get("atoms")))
    total = 0
    for row in _list(data.get("uses")):
        at, replica, count, *seconds_ = _list(row, 7)
        cost_s, decode_s, oldest_s, newest_s = (_real(value) for value in seconds_)
        total += _count(count)
        if not (type(at) is int and type(replica) is int and -1 <= at < len(paths)):
            raise CheckpointError("uses of no path")
        if not 0 <= replica < len(found) or oldest_s < newest_s or total > USES_MAX:
            raise CheckpointError("uses of no replica, from no time or too many")
        path = paths[at] if at >= 0 else ()
        found[replica].uses.append(Uses(path, count, cost_s, decode_s, oldest_s, newest_s))
    return dict(zip(names, found, strict=True))


def _read_paths(rows: list[Any]) -> list[Path]:
    paths: list[Path] = []
    atoms = 0
    for number, row in enumerate(rows):
        before, name, tokens = _list(row, 3)
        if type(before) is not int or not -1 <= before < number:
            raise CheckpointError("an atom behind no other")
        if not isinstance(name, bytes) or len(name) > _ID_BYTES_MAX:
            raise CheckpointError("an atom's name is none")
        path = (*(paths[before] if before >= 0 else ()), Atom(name, _count(tokens)))
        atoms += len(path)
        if atoms > 50 * BYTES_MAX:  # one long chain would take its length squared
            raise CheckpointError("paths are too long")
        paths.append(path)
    return paths


def _list(value: object, length: int | None = None, most: int = BYTES_MAX) -> list[Any]:
    if not isinstance(value, list | tuple) or len(value) > most:
        raise CheckpointError("a list is missing or too long")
    if length is not None and len(value) != length:
        raise CheckpointError(f"a row has {len(value)} values, not {length}")
    return list(value)


def _real(value: object, least: float = 0.0) -> float:
    if type(value) not in (int, float) or not isfinite(value):  # type: ignore[arg-type]
        raise CheckpointError("a number is none")
    number = float(value)  # type: ignore[arg-type]
    if not least <= number <= _SECONDS_MAX:
        raise CheckpointError("a number is out of range")
    return number


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _COUNT_MAX:
        raise CheckpointError("a count is none")
    return value


def _average(value: object) -> tuple[float, int]:
    mean, count = _list(value, 2)
    return _real(mean), _count(count)


# -- restoring ----------------------------------------------------------------------------------


def restore_costs(e2: E2, saved: SavedE2) -> None:
    """Take the cost model over, as far as this E2 has observed less than that one had."""
    costs = saved.costs
    if e2.costs.fit.observations < costs.observations:
        e2.costs.fit.resume(costs.theta, costs.spread, costs.observations)
        e2.costs.factor.resume(costs.factor)
    if e2.costs.decode.output_tokens.count < costs.decode[0][1]:
        e2.costs.decode.resume(costs.decode)


def restore_replica(
    e2: E2, replica: str, saved: SavedReplica, now_s: float, elapsed_s: float
) -> bool:
    """Give a replica that has joined what it had ``elapsed_s`` ago; once. False for one unknown."""
    book = e2._books.by_name.get(replica)
    if not isinstance(book, E2Book):
        return False
    book.joined_s = min(book.joined_s, now_s - saved.age_s - elapsed_s)
    e2.rule.since_s = min(e2.rule.since_s, book.joined_s)
    book.served += saved.served
    book.placed += saved.served
    _resume(book.outputs, saved.outputs)
    if book.speed.state[0][1] < saved.speed[0][1]:
        book.speed.resume(saved.speed)
    forest = e2.forest
    for uses in saved.uses:
        if not uses.count and uses.path:
            tokens = sum(atom.tokens for atom in uses.path)
            forest.hold(uses.path, tokens, replica, now_s)
    for age_s, uses in sorted(_single(saved.uses), key=lambda pair: -pair[0]):
        age_s += elapsed_s
        if age_s < forest.window_s:
            each_s, decode_s = uses.cost_s / uses.count, uses.decode_s / uses.count
            book.count(forest.use(uses.path, replica, now_s - age_s, each_s, decode_s))
    forest.sort_uses()
    return True


def _single(saved: list[Uses]) -> Iterator[tuple[float, Uses]]:
    """Every use with its age: the oldest, the newest, the others evenly between."""
    for uses in saved:
        step_s = (uses.oldest_s - uses.newest_s) / max(1, uses.count - 1)
        for number in range(uses.count):
            yield uses.oldest_s - number * step_s, uses


def _resume(average: Average, state: tuple[float, int]) -> None:
    if average.count < state[1]:
        average.resume(state)
