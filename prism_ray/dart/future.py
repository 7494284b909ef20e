"""The known future of a replay: which request uses a place next. For bounds only; no product has it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence


class Future:
    """When each path key is used, by position in the order in which requests will be admitted.

    Feed it the whole replay, one tuple of path keys a request (``path_keys`` or the marks' keys), then
    call ``use`` for every request as it is admitted. A request that is admitted out of the expected
    order takes the place of the next one that uses the same keys; counts stay right.
    """

    def __init__(self, requests: Iterable[Sequence[bytes]]) -> None:
        self._uses: dict[bytes, deque[int]] = {}
        for position, keys in enumerate(requests):
            for key in keys:
                self._uses.setdefault(key, deque()).append(position)

    def next_use(self, key: bytes | None) -> int:
        """Position of the next request that uses the place; -1 if none does, or it has no key."""
        uses = self._uses.get(key) if key is not None else None
        return uses[0] if uses else -1

    def use(self, keys: Sequence[bytes]) -> None:
        """The request with these keys is admitted now: its uses lie in the past."""
        for key in keys:
            if uses := self._uses.get(key):
                uses.popleft()
                if not uses:
                    del self._uses[key]
