"""Brute-force twins of the peers: every choice from its definition, over plain lists, no shortcut.

A twin is asked for its whole order of a queue (oldest first) at the start of a replica's turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple

from prism_ray.model import Ticket
from prism_ray.scheduling import CacheView

Twin = Callable[[Sequence[Ticket], CacheView], list[str]]


def path_of(ticket: Ticket) -> tuple[bytes, ...]:
    return tuple(atom.id for atom in ticket.skeleton.path(ticket.skeleton.native_order))


def matched_tokens(ticket: Ticket, cache: CacheView) -> int:
    return cache.match(ticket.skeleton.path(ticket.skeleton.native_order)).cached_tokens


def cached_tokens(ticket: Ticket, cache: CacheView) -> int:
    return min(matched_tokens(ticket, cache), max(0, ticket.skeleton.prompt_tokens - 1))


def cached_path(ticket: Ticket, cache: CacheView) -> tuple[bytes, ...]:
    path = ticket.skeleton.path(ticket.skeleton.native_order)
    cached = cache.match(path).cached_tokens
    ends = [sum(a.tokens for a in path[: n + 1]) for n in range(len(path))]
    return tuple(atom.id for atom, end in zip(path, ends, strict=True) if end <= cached)


def common_tokens(a: Ticket, b: Ticket) -> int:
    path = a.skeleton.path(a.skeleton.native_order)
    shared = 0
    for atom, other in zip(path, path_of(b), strict=False):
        if atom.id != other:
            break
        shared += atom.tokens
    return shared


def waits_for_another(queue: Sequence[Ticket], cache: CacheView) -> set[str]:
    """Held back: at most 32 tokens cached, and 32 shared with an earlier one that is not held."""
    held: set[str] = set()
    for number, ticket in enumerate(queue):
        if matched_tokens(ticket, cache) > 32:
            continue
        before = [
            other
            for other in queue[:number]
            if other.request_id not in held and matched_tokens(other, cache) <= 32
        ]
        if any(common_tokens(ticket, other) >= 32 for other in before):
            held.add(ticket.request_id)
    return held


def fcfs(queue: Sequence[Ticket], cache: CacheView) -> list[str]:
    return [ticket.request_id for ticket in queue]


def lpm(queue: Sequence[Ticket], cache: CacheView) -> list[str]:
    if len(queue) > 128:
        return fcfs(queue, cache)
    return lpm_uncapped(queue, cache)


def lpm_uncapped(queue: Sequence[Ticket], cache: CacheView) -> list[str]:
    held = waits_for_another(queue, cache)
    go = [ticket for ticket in queue if ticket.request_id not in held]
    wait = [ticket for ticket in queue if ticket.request_id in held]
    go.sort(key=lambda ticket: -cached_tokens(ticket, cache))
    return [ticket.request_id for ticket in (*go, *wait)]


def dfs_weight(queue: Sequence[Ticket], cache: CacheView) -> list[str]:
    """Post-order of the tree of cached paths, built by listing prefixes instead of nodes."""
    ends = [cached_path(ticket, cache) for ticket in queue]

    def below(prefix: tuple[bytes, ...]) -> list[str]:
        depth = len(prefix)
        inside = [end for end in ends if end[:depth] == prefix and len(end) > depth]
        children = list(dict.fromkeys(end[: depth + 1] for end in inside))
        weight = {child: sum(end[: depth + 1] == child for end in inside) for child in children}
        children.sort(key=lambda child: -weight[child])
        here = [t.request_id for t, end in zip(queue, ends, strict=True) if end == prefix]
        return [name for child in children for name in below(child)] + here

    return below(())


def hrrn(
    queue: Sequence[Ticket], cache: CacheView, processed: int, at_arrival: dict[str, int]
) -> list[str]:
    if len(queue) > 128:
        return fcfs(queue, cache)
    held = waits_for_another(queue, cache)

    def ratio(ticket: Ticket) -> float:
        uncached = ticket.skeleton.prompt_tokens - cached_tokens(ticket, cache)
        if uncached <= 0:
            return float("inf")
        return 1 + (processed - at_arrival[ticket.request_id]) / uncached

    go = [ticket for ticket in queue if ticket.request_id not in held]
    go.sort(key=lambda ticket: (-ratio(ticket), ticket.request_id))
    return [ticket.request_id for ticket in go] + sorted(held)


def k_lpm(queue: Sequence[Ticket], cache: CacheView, k: int, position: int) -> list[str]:
    """One pick at a time; ``position`` is how many dispatches this replica has had."""
    left = list(queue)
    order = []
    while left:
        if position % k:
            best = max(left, key=lambda ticket: (cached_tokens(ticket, cache), -left.index(ticket)))
        else:
            best = left[0]
        left.remove(best)
        order.append(best.request_id)
        position += 1
    return order


def preble_group(ticket: Ticket, cache: CacheView) -> int:
    """The group of 1..10 whose tenth of cached fraction the request lies in."""
    cached, prompt = cached_tokens(ticket, cache), ticket.skeleton.prompt_tokens
    return next((g for g in range(1, 11) if cached * 10 <= g * prompt), 10)


def preble_groups(
    queue: Sequence[Ticket], cache: CacheView, count: int, owed: dict[int, int]
) -> list[str]:
    """Smooth weighted round robin: each turn every group that waits is owed its number, the one that is
    owed most (of equals the higher) sends its oldest and pays what all were owed. ``owed`` goes on."""
    left = list(queue)
    order: list[str] = []
    while left and len(order) < count:
        waiting = {preble_group(ticket, cache) for ticket in left}
        for group in waiting:
            owed[group] = owed.get(group, 0) + group
        best = max(waiting, key=lambda group: (owed[group], group))
        owed[best] -= sum(waiting)
        turn = next(ticket for ticket in left if preble_group(ticket, cache) == best)
        left.remove(turn)
        order.append(turn.request_id)
    return order


def peek(queue: Sequence[Ticket], cache: CacheView, fairness: int, position: int) -> list[str]:
    """One pick at a time: the first in line that lacks nothing that another one is computing."""
    line = _in_line(queue, 0, cache)
    left, held, sent = list(queue), set[str](), set[tuple[bytes, ...]]()
    order = []
    while left:
        turn = left[0]
        if not fairness or position % fairness:
            for ticket in (t for t in line if t in left and t.request_id not in held):
                match = cache.match(ticket.skeleton.path(ticket.skeleton.native_order))
                lacks = _beyond(ticket, match.cached_tokens)
                if match.computing_tokens <= match.cached_tokens and not (
                    lacks[:1] and lacks[0] in sent
                ):
                    turn = ticket
                    break
                held.add(ticket.request_id)
        left.remove(turn)
        order.append(turn.request_id)
        sent |= set(_beyond(turn, matched_tokens(turn, cache)))
        position += 1
    return order


def _beyond(ticket: Ticket, cached: int) -> list[tuple[bytes, ...]]:
    """The prefixes of a prompt, in whole atoms, that end behind what is cached of it."""
    path, ids = ticket.skeleton.path(ticket.skeleton.native_order), path_of(ticket)
    ends = [sum(a.tokens for a in path[: n + 1]) for n in range(len(path))]
    return [ids[: n + 1] for n, end in enumerate(ends) if end > cached]


def _in_line(queue: Sequence[Ticket], depth: int, cache: CacheView) -> list[Ticket]:
    """The whole prefix tree of the queue, depth first; the queue shares its first ``depth`` atoms."""
    line = [ticket for ticket in queue if len(path_of(ticket)) == depth]
    deeper = [ticket for ticket in queue if len(path_of(ticket)) > depth]
    groups = [
        [ticket for ticket in deeper if path_of(ticket)[depth] == atom]
        for atom in dict.fromkeys(path_of(ticket)[depth] for ticket in deeper)
    ]

    def rank(group: list[Ticket]) -> tuple[bool, int]:
        path = group[0].skeleton.path(group[0].skeleton.native_order)
        cold = matched_tokens(group[0], cache) < sum(a.tokens for a in path[: depth + 1])
        return cold, -path[depth].tokens * (len(group) - 1)

    for group in sorted(groups, key=rank):
        line += _in_line(group, depth + 1, cache)
    return line


class FrontAlignment:
    """Oldest first; in each run the ``f_front`` segments of highest w_a A + w_g G come first, falling,
    equals by who was seen first; the others as the client wrote them.

    Ranks are of segments in the order in which they came up; here nothing is ever forgotten.
    """

    def __init__(
        self,
        f_front: int = 3,
        w_active: float = 1e6,
        w_global: float = 1.0,
        priority: str = "weighted",
    ) -> None:
        self.f_front = f_front
        self.weights = (w_active, w_global)
        self.strict = priority == "lexicographic"
        self.seen: list[bytes] = []

    def see(self, arrived: Sequence[Ticket]) -> None:
        """Requests in the order in which they came."""
        for ticket in arrived:
            self.seen += [s.id for s in ticket.skeleton.segments if s.id not in self.seen]

    def order(
        self, queue: Sequence[Ticket], active: Sequence[Ticket]
    ) -> list[tuple[str, tuple[int, ...]]]:
        def uses(segment: bytes, tickets: Sequence[Ticket]) -> int:
            return sum(any(s.id == segment for s in t.skeleton.segments) for t in tickets)

        def strength(segment: bytes) -> tuple[float, ...]:
            counts = uses(segment, active), uses(segment, queue)
            if self.strict:
                return tuple(map(float, counts))
            return (sum(w * n for w, n in zip(self.weights, counts, strict=True)),)

        def written(ticket: Ticket) -> tuple[int, ...]:
            ids = [s.id for s in ticket.skeleton.segments]
            order = list(range(len(ids)))
            for run in ticket.skeleton.runs:
                by_rank = sorted(run, key=lambda slot: self.seen.index(ids[slot]))
                strongest = sorted(by_rank, key=lambda slot: strength(ids[slot]), reverse=True)
                front = strongest[: self.f_front]
                for slot, index in zip(
                    run, [*front, *(s for s in run if s not in front)], strict=True
                ):
                    order[slot] = index
            return tuple(order)

        return [(ticket.request_id, written(ticket)) for ticket in queue]


class Placed(NamedTuple):
    """A context of a batch: how deep it lies, its place in the batch, its documents as written."""

    depth: int
    place: int
    docs: tuple[int, ...]


def contextpilot(contexts: Sequence[Sequence[int]]) -> list[list[Placed]] | None:
    """A first batch: the groups in which it runs.

    Clusters are merged by mean distance, the two nearest first; what a cluster's contexts all have is
    written first, the outermost cluster's foremost and in order of number, the rest as it came.
    Contexts of one outermost cluster below the root are a group; the largest group goes first, and
    in a group those that lie deepest. None where two pairs are equally near, or two clusters have the
    same in common without one holding the other: then the definition leaves the tree open.
    """
    sets = [frozenset(context) for context in contexts]
    leaves = list(dict.fromkeys(sets))
    clusters = [[n for n, docs in enumerate(sets) if docs == leaf] for leaf in leaves]
    made = [(cluster, leaf) for cluster, leaf in zip(clusters, leaves, strict=True)]
    while len(clusters) > 1:
        apart = {
            (a, b): fmean(_apart(contexts[m], contexts[n]) for m in one for n in other)
            for a, one in enumerate(clusters)
            for b, other in enumerate(clusters)
            if a < b
        }
        least = min(apart.values())
        nearest = [pair for pair, distance in apart.items() if distance < least + 1e-6]
        if least >= 1 - 1e-6:
            break  # nothing is shared any more
        if len(nearest) > 1:
            return None
        ((a, b),) = nearest
        merged = [*clusters[a], *clusters[b]]
        clusters = [c for n, c in enumerate(clusters) if n not in (a, b)] + [merged]
        common = frozenset.intersection(*(sets[n] for n in merged))
        if common:
            made.append((merged, common))
    for one, shared in made:
        for other, common in made:
            if one is not other and shared == common:
                return None
    everybody = [cluster for cluster, _ in made if len(cluster) == len(contexts)]
    groups: dict[int, list[Placed]] = {}
    for place in range(len(contexts)):
        around = sorted((each for each in made if place in each[0]), key=lambda each: -len(each[0]))
        first = contexts[min(around[-1][0])]  # equal sets write what the first of them writes
        written: list[int] = []
        for _, common in around[:-1]:
            written += sorted(common.difference(written))
        written += [doc for doc in first if doc not in written]
        way = [cluster for cluster, _ in around if cluster not in everybody]
        group = made.index(next(e for e in made if e[0] is way[0])) if way else -1
        groups.setdefault(group, []).append(Placed(len(way), place, tuple(written)))
    return sorted(groups.values(), key=lambda g: (-len(g), min(each.place for each in g)))


def _apart(a: Sequence[int], b: Sequence[int]) -> float:
    """1 - |A and B| / max(|A|, |B|) + 0.001 x mean difference of the positions of what both have."""
    both = [doc for doc in a if doc in b]
    if not both:
        return 1.0
    moved = [abs(list(a).index(doc) - list(b).index(doc)) for doc in both]
    return 1 - len(both) / max(len(a), len(b)) + 0.001 * fmean(moved)
