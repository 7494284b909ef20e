"""The best hit rates of tiny instances by trying everything; what the bounds are compared with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations, permutations, product

from loadgen.bounds import Prompt
from prism_ray.model import Atom

Tokens = tuple[str, ...]
"""A prompt token by token: equal texts mean equal tokens."""


def tokens_of(path: Sequence[Atom]) -> Tokens:
    return tuple(f"{atom.id.decode()}{i}" for atom in path for i in range(atom.tokens))


def common(one: Tokens, other: Tokens) -> int:
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return length


def hits_infinite(order: Sequence[tuple[Tokens, Tokens]], page: int = 1) -> int:
    """Hit tokens of (prompt, output) pairs served one by one with nothing ever evicted."""
    hits = 0
    for index, (prompt, _) in enumerate(order):
        best = max((common(prompt, p + o) for p, o in order[:index]), default=0)
        best = min(best, len(prompt) - 1)
        hits += best - best % page
    return hits


def hits_finite(order: Sequence[Tokens], capacity: int) -> int:
    """Most hit tokens of prompts served one by one, whatever is evicted; -1 if one does not fit.

    What is resident is a set of prefixes, closed upwards; a served prompt is resident whole.
    """
    prompts = tuple(order)

    @cache
    def best(index: int, resident: frozenset[Tokens]) -> int:
        if index == len(prompts):
            return 0
        prompt = prompts[index]
        own = frozenset(prompt[: n + 1] for n in range(len(prompt)))
        if len(own) > capacity:
            return -1
        hit = min(sum(prefix in resident for prefix in own), len(prompt) - 1)
        others = sorted(resident - own)
        most = -1
        for kept in range(min(len(others), capacity - len(own)) + 1):
            for chosen in combinations(others, kept):
                now = own | frozenset(chosen)
                if all(prefix[:-1] in now for prefix in chosen if len(prefix) > 1):
                    most = max(most, best(index + 1, now))
        return -1 if most < 0 else hit + most

    return best(0, frozenset())


def orders_within(arrivals: Sequence[float], wait: float) -> Iterator[tuple[int, ...]]:
    """Orders of service in which somebody can start each request within ``wait`` of its arrival."""
    for order in permutations(range(len(arrivals))):
        now = 0.0
        for number in order:
            now = max(now, arrivals[number])
            if now > arrivals[number] + wait:
                break
        else:
            yield order


def rewritten(paths: Sequence[tuple[Atom, ...]]) -> Iterator[tuple[tuple[Atom, ...], ...]]:
    """Every way to permute the atoms between the first and the last of each path."""
    ways = [[(path[0], *middle, path[-1]) for middle in permutations(path[1:-1])] for path in paths]
    yield from product(*ways)


def total(prompts: Sequence[Prompt]) -> int:
    return sum(prompt.tokens for prompt in prompts)
