"""What the running requests of one replica occupy: shared prefixes once, private tokens each."""

from __future__ import annotations

from dataclasses import dataclass

from prism_ray.model import Atom


@dataclass(slots=True)
class _Node:
    key: int
    tokens: int
    users: int = 0


class Footprint:
    """Reference-counted paths of in-flight requests, with their private and output tokens.

    It answers one question: how many KV tokens must the pool hold if every request that was sent
    grows to its output limit? (architecture, "Late binding")
    """

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, bytes], _Node] = {}
        self._paths: dict[str, tuple[tuple[tuple[int, bytes], ...], int]] = {}
        self._next_key = 1
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._paths)

    def added_tokens(self, path: tuple[Atom, ...], own_tokens: int) -> int:
        """Tokens that a request on ``path`` would add; changes nothing."""
        parent, added = 0, own_tokens
        for index, atom in enumerate(path):
            node = self._nodes.get((parent, atom.id))
            if node is None:
                return added + sum(a.tokens for a in path[index:])
            parent = node.key
        return added

    def add(self, request_id: str, path: tuple[Atom, ...], own_tokens: int) -> None:
        """Hold a request's path and its own (private + output limit) tokens."""
        if request_id in self._paths:
            raise ValueError(f"request {request_id} is held already")
        parent, places = 0, []
        for atom in path:
            place = (parent, atom.id)
            node = self._nodes.get(place)
            if node is None:
                node = self._nodes[place] = _Node(self._next_key, atom.tokens)
                self._next_key += 1
                self.tokens += atom.tokens
            node.users += 1
            places.append(place)
            parent = node.key
        self._paths[request_id] = (tuple(places), own_tokens)
        self.tokens += own_tokens

    def remove(self, request_id: str) -> bool:
        """Let a request go; False if it is not held."""
        held = self._paths.pop(request_id, None)
        if held is None:
            return False
        places, own_tokens = held
        self.tokens -= own_tokens
        for place in places:
            node = self._nodes[place]
            node.users -= 1
            if node.users == 0:
                del self._nodes[place]
                self.tokens -= node.tokens
        return True

    def check_integrity(self) -> None:
        """Raise AssertionError unless users and tokens equal a recount."""
        users: dict[tuple[int, bytes], int] = {}
        for places, _ in self._paths.values():
            for place in places:
                users[place] = users.get(place, 0) + 1
        assert users == {place: node.users for place, node in self._nodes.items()}
        own = sum(tokens for _, tokens in self._paths.values())
        assert self.tokens == own + sum(node.tokens for node in self._nodes.values())
