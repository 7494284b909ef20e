"""The global forest: which replicas hold which segment paths, and who asked for them lately.

A radix forest over path atoms with exact token lengths (Preble, section 3.2). It is a belief, made of
what was placed; it knows neither loads nor costs and decides nothing.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from prism_ray.placement.base import Path


class Node:
    """A run of atoms that nobody parts: ``tokens`` of its own, ``end_tokens`` from the root.

    ``holders`` are the shelves of the replicas that hold it; ``shared`` counts the uses of the last H
    that went through it, by replica, ``uses`` is their sum and ``load_s`` what they cost together.
    ``state`` and ``moved`` are replication's: its watch, and to which replica the node was given
    until when. ``asked`` is the rule's: requests/s of late, and as of when.
    """

    end_tokens: int
    __slots__ = (
        "asked",
        "atoms",
        "children",
        "end_tokens",
        "holders",
        "load_s",
        "moved",
        "parent",
        "shared",
        "state",
        "tokens",
        "uses",
    )

    def __init__(self, parent: Node | None, atoms: Path, tokens: int) -> None:
        self.parent = parent
        self.atoms = atoms
        self.tokens = tokens
        before: int = parent.end_tokens if parent is not None else 0
        self.end_tokens = before + tokens
        self.children: dict[bytes, Node] = {}
        self.holders: dict[str, Shelf] = {}
        self.shared: dict[str, int] = {}
        self.uses = 0
        self.load_s = 0.0
        self.moved: tuple[str, float] | None = None
        self.asked: tuple[float, float] | None = None
        self.state: object | None = None


class Shelf:
    """What one replica is believed to hold, least recently used first; parents after children."""

    __slots__ = ("nodes", "replica", "room_tokens", "tokens")

    def __init__(self, replica: str, room_tokens: int) -> None:
        self.replica = replica
        self.room_tokens = room_tokens
        self.nodes: OrderedDict[Node, None] = OrderedDict()
        self.tokens = 0


class Use:
    """One request's use of a path at a replica; in the window of H until it expires or is undone.

    ``cost_s`` is what it is thought to cost there, ``decode_s`` the part of it that is decoding;
    ``held_tokens`` is how much of its path the replica held before.
    """

    __slots__ = ("at_s", "cost_s", "decode_s", "held_tokens", "live", "node", "shelf")

    def __init__(
        self, at_s: float, shelf: Shelf, node: Node, cost_s: float, decode_s: float
    ) -> None:
        self.at_s = at_s
        self.shelf = shelf
        self.node = node
        self.cost_s = cost_s
        self.decode_s = decode_s
        self.held_tokens = 0
        self.live = True


class Match(NamedTuple):
    """The longest front of a path that somebody holds.

    ``nodes`` matched whole, from the root; ``tokens`` of the front; ``part`` is the node that the
    front ends in, if it ends inside of one.
    """

    nodes: list[Node]
    tokens: int
    part: Node | None


class Forest:
    """See the module. Nodes split where paths part and merge again where the difference is gone; a
    node dies when nobody holds it and nobody used it within ``window_s``.

    Bounds: a shelf holds at most its replica's pool and ``shelf_nodes_max`` nodes, and at most
    ``uses_max`` uses are remembered: beyond, the oldest expire early. None is remembered that is as old
    as ``forgotten_s`` then.
    """

    def __init__(
        self, window_s: float, *, shelf_nodes_max: int = 32_768, uses_max: int = 262_144
    ) -> None:
        self.window_s = window_s
        self.shelf_nodes_max = shelf_nodes_max
        self.uses_max = uses_max
        self.root = Node(None, (), 0)
        self.shelves: dict[str, Shelf] = {}
        self.nodes = 0
        self.forgotten_s = float("-inf")
        self._uses: deque[Use] = deque()

    def __len__(self) -> int:
        """Uses in the window, the undone ones that have not left it included."""
        return len(self._uses)

    # -- replicas -------------------------------------------------------------------------------

    def join(self, replica: str, room_tokens: int) -> Shelf:
        """A replica that holds nothing. ValueError if it is here."""
        if replica in self.shelves:
            raise ValueError(f"replica {replica!r} is already here")
        shelf = self.shelves[replica] = Shelf(replica, room_tokens)
        return shelf

    def leave(self, replica: str) -> None:
        """Forget what a replica holds and every use of it."""
        for use in self._uses:
            if use.live and use.shelf.replica == replica:
                self.undo(use)
        self._uses = deque(use for use in self._uses if use.live)
        self.clear(replica)
        del self.shelves[replica]

    def clear(self, replica: str) -> None:
        """The replica holds nothing any more; its uses stay in the window."""
        shelf = self.shelves[replica]
        while shelf.nodes:
            self._unshelve(next(iter(shelf.nodes)), shelf)

    # -- paths ----------------------------------------------------------------------------------

    def match(self, path: Path) -> Match:
        """What somebody holds of a path; changes nothing."""
        node, tokens = self.root, 0
        nodes: list[Node] = []
        at, length = 0, len(path)
        while at < length:
            child = node.children.get(path[at].id)
            if child is None or not child.holders:
                break
            atoms = child.atoms
            if len(atoms) > 1:
                same = _common(atoms, path, at)
                if same < len(atoms):
                    part = sum([atom.tokens for atom in atoms[:same]])
                    return Match(nodes, tokens + part, child)
                at += same
            else:
                at += 1
            nodes.append(child)
            tokens += child.tokens
            node = child
        return Match(nodes, tokens, None)

    def use(
        self, path: Path, replica: str, now_s: float, cost_s: float = 0.0, decode_s: float = 0.0
    ) -> Use:
        """A request on ``path`` goes to ``replica``, which holds it from now on."""
        shelf = self.shelves[replica]
        leaf = self._insert(path)
        use = Use(now_s, shelf, leaf, cost_s, decode_s)
        on_shelf = shelf.nodes
        node: Node = leaf
        parent = node.parent
        # From the leaf to the root, so that on the shelf parents come after their children.
        while parent is not None:
            node.uses += 1
            node.load_s += cost_s
            shared = node.shared
            shared[replica] = shared.get(replica, 0) + 1
            if replica in node.holders:
                use.held_tokens = use.held_tokens or node.end_tokens
                on_shelf.move_to_end(node)
            else:
                node.holders[replica] = shelf
                on_shelf[node] = None
                shelf.tokens += node.tokens
            if len(node.children) == 1:
                self._merge(node)
            node, parent = parent, parent.parent
        self._uses.append(use)
        while shelf.tokens > shelf.room_tokens or len(on_shelf) > self.shelf_nodes_max:
            self._unshelve(next(iter(on_shelf)), shelf)
        return use

    def undo(self, use: Use) -> None:
        """The use did not happen; what the replica is believed to hold stays until it is corrected."""
        if use.live:
            use.live = False
            self._leave_window(use)

    def withdraw(self, use: Use, others: Iterable[Use] = ()) -> None:
        """The use is not going to happen: the replica does not hold what nobody else brought there.

        What ``others``, still to come to that replica, share with it is theirs to bring from now on.
        """
        if not use.live:
            return
        replica = use.shelf.replica
        top: Node | None = None
        node = use.node
        while node.end_tokens > use.held_tokens and node.shared.get(replica) == 1:
            top = node
            assert node.parent is not None
            node = node.parent
        if node.end_tokens > use.held_tokens:
            for other in others:
                if other.held_tokens > use.held_tokens and _is_below(other.node, node):
                    other.held_tokens = use.held_tokens
        if top is not None and node.end_tokens < use.held_tokens:
            self._split(top, _atoms_within(top.atoms, use.held_tokens - node.end_tokens))
        if top is not None:
            self.drop(replica, top)
        self.undo(use)

    def held_without(self, use: Use, found: Match, same_tokens: int) -> int:
        """How much of a matched front the use's replica holds whatever becomes of the use.

        The use's own path is the same as the matched one for so many tokens.
        """
        replica = use.shelf.replica
        whole = [(node, node.end_tokens) for node in found.nodes]
        if found.part is not None:
            whole.append((found.part, found.tokens))
        for node, end_tokens in reversed(whole):
            if replica not in node.holders:
                continue
            if end_tokens > same_tokens or node.shared.get(replica, 0) > use.live:
                return end_tokens
            if use.held_tokens > node.end_tokens - node.tokens:
                return min(end_tokens, use.held_tokens)
        return 0

    def is_new(self, path: Path, found: Match) -> bool:
        """Whether nothing is known of what follows the matched front of a path."""
        if found.part is not None:
            return found.tokens < sum([atom.tokens for atom in path])
        at = sum([len(node.atoms) for node in found.nodes])
        last = found.nodes[-1] if found.nodes else self.root
        return at < len(path) and path[at].id not in last.children

    def hold(self, path: Path, tokens: int, replica: str, now_s: float) -> None:
        """The replica holds so much of a path (whole atoms), whoever brought it."""
        self.undo(self.use(path[: _atoms_within(path, tokens)], replica, now_s))

    def brings(self, use: Use, node: Node) -> bool:
        """Whether a use in the window goes through a node."""
        return use.live and _is_below(use.node, node)

    def expire(self, now_s: float) -> list[Use]:
        """The uses that left the window since the last call (undone ones excluded)."""
        gone: list[Use] = []
        uses, before = self._uses, now_s - self.window_s
        while uses and (uses[0].at_s <= before or len(uses) > self.uses_max):
            use = uses.popleft()
            if use.at_s > before:
                self.forgotten_s = max(self.forgotten_s, use.at_s)
            if use.live:
                use.live = False
                self._leave_window(use)
                gone.append(use)
        return gone

    def sort_uses(self) -> None:
        """Put uses in the order of their times, after some that are older than others were added."""
        self._uses = deque(sorted(self._uses, key=lambda use: use.at_s))

    def drop(self, replica: str, node: Node) -> None:
        """The replica does not hold the node, nor anything below it."""
        shelf = node.holders.get(replica)
        if shelf is None:
            return
        below = [node]
        for each in below:
            below.extend(c for c in each.children.values() if replica in c.holders)
        for each in reversed(below):
            if each in shelf.nodes:  # else it became part of another
                self._unshelve(each, shelf)

    # -- nodes ----------------------------------------------------------------------------------

    def _insert(self, path: Path) -> Node:
        node, at, length = self.root, 0, len(path)
        while at < length:
            child = node.children.get(path[at].id)
            if child is None:
                atoms = path[at:]
                child = Node(node, atoms, sum([atom.tokens for atom in atoms]))
                node.children[atoms[0].id] = child
                self.nodes += 1
                return child
            atoms = child.atoms
            same = 1 if len(atoms) == 1 else _common(atoms, path, at)
            if same < len(atoms):
                child = self._split(child, same)
            at += same
            node = child
        return node

    def _split(self, lower: Node, atoms: int) -> Node:
        """Part a node after so many atoms; uses keep pointing at the lower part. Returns the upper."""
        parent = lower.parent
        assert parent is not None
        front, rest = lower.atoms[:atoms], lower.atoms[atoms:]
        upper = Node(parent, front, sum([atom.tokens for atom in front]))
        parent.children[front[0].id] = upper
        upper.children[rest[0].id] = lower
        upper.holders = dict(lower.holders)
        upper.shared = dict(lower.shared)
        upper.uses, upper.load_s = lower.uses, lower.load_s
        lower.parent, lower.atoms = upper, rest
        lower.tokens -= upper.tokens
        for shelf in upper.holders.values():
            shelf.nodes[upper] = None
            above = parent
            while above.parent is not None:
                shelf.nodes.move_to_end(above)
                above = above.parent
        self.nodes += 1
        return upper

    def _unshelve(self, node: Node, shelf: Shelf) -> None:
        del shelf.nodes[node]
        shelf.tokens -= node.tokens
        del node.holders[shelf.replica]
        self._tidy(node)

    def _leave_window(self, use: Use) -> None:
        replica, cost_s = use.shelf.replica, use.cost_s
        node = use.node
        parent = node.parent
        while parent is not None:
            node.uses -= 1
            # The last one out takes what rounding left.
            node.load_s = node.load_s - cost_s if node.uses else 0.0
            left = node.shared[replica] - 1
            if left:
                node.shared[replica] = left
            else:
                del node.shared[replica]
            node, parent = parent, parent.parent
        # Further up nothing changed between a node and its only child: both were used once less.
        self._tidy(use.node)

    def _tidy(self, node: Node) -> None:
        """Remove what nobody holds and nobody used, and put together what nothing parts."""
        parent = node.parent
        while parent is not None and not (node.children or node.holders or node.uses):
            del parent.children[node.atoms[0].id]
            node.parent = None
            self.nodes -= 1
            node, parent = parent, parent.parent
        if parent is not None:
            if len(node.children) == 1:
                self._merge(node)
            if parent.parent is not None and len(parent.children) == 1:
                self._merge(parent)

    def _merge(self, upper: Node) -> None:
        """Let a node's only child take its place, if whoever has the one has the other."""
        (lower,) = upper.children.values()
        if (
            upper.parent is None
            or upper.uses != lower.uses
            or upper.holders.keys() != lower.holders.keys()
        ):
            return
        lower.parent = upper.parent
        lower.atoms = upper.atoms + lower.atoms
        lower.tokens += upper.tokens
        lower.state = lower.state or upper.state
        lower.moved = lower.moved or upper.moved
        lower.asked = lower.asked or upper.asked
        upper.parent.children[lower.atoms[0].id] = lower
        for shelf in upper.holders.values():
            del shelf.nodes[upper]
        upper.parent = None
        self.nodes -= 1

    def walk(self) -> Iterator[Node]:
        """All nodes, parents first."""
        rest = list(self.root.children.values())
        while rest:
            node = rest.pop()
            yield node
            rest.extend(node.children.values())

    def check_integrity(self) -> None:
        """AssertionError unless every count equals a recount and every node has a reason to be."""
        nodes = list(self.walk())
        assert self.nodes == len(nodes)
        live = [use for use in self._uses if use.live]
        uses: dict[Node, int] = {}
        for use in live:
            node: Node | None = use.node
            while node is not None and node.parent is not None:
                uses[node] = uses.get(node, 0) + 1
                node = node.parent
            assert node is self.root, "a use points at a dead node"
        for node in nodes:
            parent = node.parent
            assert parent is not None
            assert parent.children[node.atoms[0].id] is node
            assert node.tokens == sum(atom.tokens for atom in node.atoms)
            assert node.end_tokens == parent.end_tokens + node.tokens
            assert node.uses == uses.get(node, 0) == sum(node.shared.values())
            assert node.uses or not node.load_s
            assert all(count > 0 for count in node.shared.values())
            assert node.children or node.holders or node.uses, "a dead node"
            assert all(node in shelf.nodes for shelf in node.holders.values())
            if parent is not self.root:
                assert node.holders.keys() <= parent.holders.keys(), "held without its front"
        for replica, shelf in self.shelves.items():
            assert shelf.tokens == sum(node.tokens for node in shelf.nodes)
            assert shelf.tokens <= shelf.room_tokens
            assert len(shelf.nodes) <= self.shelf_nodes_max
            assert all(node.holders[replica] is shelf for node in shelf.nodes)
            seen: set[Node] = set()
            for node in shelf.nodes:
                assert node.parent not in seen, "a parent before its child"
                seen.add(node)


def _is_below(node: Node, upper: Node) -> bool:
    """Whether a path through ``node`` goes through ``upper``, too."""
    while node is not upper and node.parent is not None and node.end_tokens > upper.end_tokens:
        node = node.parent
    return node is upper


def _atoms_within(atoms: Path, tokens: int) -> int:
    """How many atoms lie whole within the first ``tokens``."""
    whole = 0
    for atom in atoms:
        tokens -= atom.tokens
        if tokens < 0:
            break
        whole += 1
    return whole


def _common(atoms: Path, path: Path, at: int) -> int:
    """How many of ``atoms``, of which the first is equal, equal those of ``path`` from ``at``."""
    limit = min(len(atoms), len(path) - at)
    same = 1
    while same < limit and atoms[same].id == path[at + same].id:
        same += 1
    return same
