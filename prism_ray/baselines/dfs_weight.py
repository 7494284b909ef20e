"""The policy ``dfs-weight``: depth first through the cached tree, as SGLang sorts its queue."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prism_ray.parameters import checked
from prism_ray.ranking import Path, QueuePolicy, Ranking, Waiting, listed
from prism_ray.scheduling import POLICIES, CacheView


@POLICIES.register("dfs-weight")
class DfsWeight(QueuePolicy):
    """Requests in post-order of the tree of their cached prefixes, children with most requests first.

    Has no parameters. Ties between children go to the one whose first request is older.
    """

    name = "dfs-weight"

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        checked(self.name, params, {})
        super().__init__()

    def rank(self, replica: str, cache: CacheView, queue: Collection[Waiting]) -> Ranking:
        root = _Node()
        for waiting in queue:
            root.add(waiting, cache.match(waiting.path).cached_tokens)
        return listed(root.in_order(), "depth first")


@dataclass(slots=True)
class _Node:
    """A cached prefix of waiting requests; ``ends`` are those whose cached part ends here."""

    children: dict[bytes, _Node] = field(default_factory=dict)
    ends: list[Waiting] = field(default_factory=list)
    requests: int = 0

    def add(self, waiting: Waiting, cached_tokens: int) -> None:
        node = self
        node.requests += 1
        for atom in _within(waiting.path, cached_tokens):
            node = node.children.setdefault(atom, _Node())
            node.requests += 1
        node.ends.append(waiting)

    def in_order(self) -> Iterator[Waiting]:
        stack: list[tuple[_Node, bool]] = [(self, False)]
        while stack:
            node, below_done = stack.pop()
            if below_done:
                yield from node.ends
                continue
            stack.append((node, True))
            children = sorted(node.children.values(), key=lambda child: -child.requests)
            stack.extend((child, False) for child in reversed(children))


def _within(path: Path, tokens: int) -> Iterator[bytes]:
    """Ids of the atoms that start within the first ``tokens`` tokens."""
    for atom in path:
        if tokens <= 0:
            return
        yield atom.id
        tokens -= atom.tokens
