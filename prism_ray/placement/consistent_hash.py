"""The placement ``consistent-hash``: the front of the prompt on a hash ring. Knows no load."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from prism_ray.model import Ticket
from prism_ray.placement.base import PLACEMENTS, Choice, Path, number, refuse_unknown
from prism_ray.placement.books import Book
from prism_ray.placement.simple import SimpleHoming


class ConsistentHash(SimpleHoming):
    """Each replica has ``points`` places on a ring; a request goes to the first at or after the hash
    of its first ``tokens`` reusable tokens (whole segments), whoever is loaded.

    A replica that joins or leaves moves only the keys that are its own. A replica that drains is
    passed over.
    """

    name = "consistent-hash"

    def __init__(self, tokens: int = 1024, points: int = 128) -> None:
        super().__init__()
        self._tokens = tokens
        self._points = points
        self._ring: list[tuple[int, str]] = []

    def joined(self, book: Book) -> None:
        for point in range(self._points):
            insort(self._ring, (_hash(f"{book.replica}#{point}".encode()), book.replica))

    def gone(self, replica: str) -> None:
        self._ring = [place for place in self._ring if place[1] != replica]

    def choose(self, ticket: Ticket, path: Path, books: list[Book]) -> Choice:
        able = {book.replica for book in books}
        key, atoms, tokens = self._key(ticket, path)
        at = bisect_left(self._ring, (_hash(key), ""))
        for step in range(len(self._ring)):
            _, replica = self._ring[(at + step) % len(self._ring)]
            if replica in able:
                numbers = {"key_atoms": atoms, "key_tokens": tokens, "passed_over": step}
                return Choice(replica, "hash", numbers)
        raise ValueError("no replica takes anything new")

    def _key(self, ticket: Ticket, path: Path) -> tuple[bytes, int, int]:
        """What is hashed, and how many atoms and tokens that is.

        A request without anything reusable is its own key.
        """
        key, atoms, tokens = b"", 0, 0
        for atom in path:
            key += len(atom.id).to_bytes(2, "big") + atom.id
            atoms += 1
            tokens += atom.tokens
            if tokens >= self._tokens:
                break
        return key or ticket.request_id.encode(), atoms, tokens


def _hash(key: bytes) -> int:
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big")


@PLACEMENTS.register("consistent-hash")
def _consistent_hash(params: Mapping[str, Any]) -> ConsistentHash:
    name = "consistent-hash"
    refuse_unknown(name, params, ("tokens", "points"))
    tokens = int(number(params, "tokens", 1024, 1))
    return ConsistentHash(tokens, int(number(params, "points", 128, 1)))
