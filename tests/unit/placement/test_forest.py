"""The forest equals a plain list of what was used and held, and forgets all of it in time."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from prism_ray.model import Atom
from prism_ray.placement.forest import Forest, Use

H = 180.0


def path(letters: str) -> tuple[Atom, ...]:
    """One atom a letter, of as many tokens as its place in the alphabet."""
    return tuple(Atom(letter.encode(), ord(letter) - ord("a") + 1) for letter in letters)


def forest(*replicas: str, room: int = 1_000, **bounds: int) -> Forest:
    made = Forest(H, **bounds)
    for replica in replicas or ("r",):
        made.join(replica, room)
    return made


class TestPaths:
    def test_a_match_ends_where_paths_part_to_the_token(self) -> None:
        trees = forest()
        trees.use(path("abcd"), "r", 0.0)
        found = trees.match(path("abxd"))
        assert found.tokens == 1 + 2
        assert found.nodes == []
        assert found.part is not None
        assert found.part.holders.keys() == {"r"}

    def test_nodes_split_where_paths_part_and_merge_when_one_way_is_left(self) -> None:
        trees = forest("r", "s", room=100)
        trees.use(path("abc"), "r", 0.0)
        assert trees.nodes == 1
        trees.use(path("abd"), "s", 50.0)
        assert trees.nodes == 3
        trees.clear("s")
        trees.expire(50.0 + H)
        assert trees.nodes == 1
        assert trees.match(path("abc")).nodes[0].tokens == 6
        trees.check_integrity()

    def test_a_node_that_nobody_holds_and_nobody_used_in_h_dies(self) -> None:
        trees = forest()
        trees.use(path("abc"), "r", 0.0)
        trees.clear("r")
        trees.expire(H - 1e-6)
        assert trees.nodes == 1, "it was used within H"
        trees.expire(H)
        assert trees.nodes == 0

    def test_what_nobody_holds_is_no_match(self) -> None:
        trees = forest()
        trees.use(path("abc"), "r", 0.0)
        trees.clear("r")
        assert trees.match(path("abc")).tokens == 0

    def test_an_empty_path_is_a_use_of_nothing(self) -> None:
        trees = forest()
        trees.use((), "r", 0.0)
        assert trees.nodes == 0
        assert [use.shelf.replica for use in trees.expire(H)] == ["r"]
        trees.check_integrity()

    def test_leaves_are_given_up_before_their_front(self) -> None:
        trees = forest(room=12)
        trees.use(path("abc"), "r", 0.0)  # 6 tokens
        trees.use(path("abd"), "r", 1.0)  # 4 more
        trees.use(path("abe"), "r", 2.0)  # 5 more: c, used longest ago, goes
        assert trees.match(path("abc")).tokens == 3
        assert trees.match(path("abd")).tokens == 7
        assert trees.match(path("abe")).tokens == 8
        trees.check_integrity()


class TestBounds:
    def test_memory_is_bounded_by_room_and_window_whatever_comes(self) -> None:
        trees = forest("r", "s", room=200, uses_max=64, shelf_nodes_max=16)
        most = 0
        for number in range(2_000):
            ids = [b"%d" % (number // 7), b"%d" % number]
            trees.use(tuple(Atom(i, 3) for i in ids), "rs"[number % 2], number * 1e-3)
            trees.expire(number * 1e-3)
            most = max(most, trees.nodes)
        assert most <= 2 * 16 + 2 * 65
        assert len(trees) <= 65
        trees.check_integrity()

    def test_a_name_that_is_here_cannot_join(self) -> None:
        with pytest.raises(ValueError, match="already"):
            forest("r").join("r", 1)


class Beliefs(RuleBasedStateMachine):
    """Beside the forest: the uses of the last H as a list."""

    def __init__(self) -> None:
        super().__init__()
        self.trees = forest("r", "s", room=60)
        self.uses: list[tuple[float, str, str, Use]] = []
        self.now = 0.0

    @rule(letters=st.text("abcde", max_size=5), replica=st.sampled_from("rs"))
    def use(self, letters: str, replica: str) -> None:
        if replica in self.trees.shelves:
            use = self.trees.use(path(letters), replica, self.now, cost_s=1.0)
            self.uses.append((self.now, replica, letters, use))

    @rule(seconds=st.sampled_from([1.0, 60.0, 179.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        gone = self.trees.expire(self.now)
        expected = [entry for entry in self.uses if entry[0] <= self.now - H]
        assert gone == [entry[3] for entry in expected]
        self.uses = [entry for entry in self.uses if entry[0] > self.now - H]

    @precondition(lambda self: self.uses)
    @rule(data=st.data())
    def undo(self, data: st.DataObject) -> None:
        entry = self.uses.pop(data.draw(st.integers(0, len(self.uses) - 1)))
        self.trees.undo(entry[3])
        self.trees.undo(entry[3])

    @rule(replica=st.sampled_from("rs"))
    def leave_or_join(self, replica: str) -> None:
        if replica in self.trees.shelves:
            self.trees.leave(replica)
            self.uses = [entry for entry in self.uses if entry[1] != replica]
        else:
            self.trees.join(replica, 60)

    @rule(replica=st.sampled_from("rs"))
    def flush(self, replica: str) -> None:
        if replica in self.trees.shelves:
            self.trees.clear(replica)
            assert not self.trees.shelves[replica].tokens

    @rule(letters=st.text("abcde", min_size=1, max_size=5), replica=st.sampled_from("rs"))
    def correct(self, letters: str, replica: str) -> None:
        """Somebody else's truth: the replica does not hold what this path ends in."""
        found = self.trees.match(path(letters))
        node = found.part or (found.nodes[-1] if found.nodes else None)
        if node is not None:
            self.trees.drop(replica, node)
            again = self.trees.match(path(letters))
            last = again.part or (again.nodes[-1] if again.nodes else None)
            if last is not None and again.tokens == found.tokens:
                assert replica not in last.holders

    @invariant()
    def every_count_is_a_recount(self) -> None:
        self.trees.check_integrity()
        for node in self.trees.walk():
            letters, at = "", node
            while at.parent is not None:
                letters = b"".join(atom.id for atom in at.atoms).decode() + letters
                at = at.parent
            through = [replica for _, replica, used, _ in self.uses if used.startswith(letters)]
            assert node.shared == Counter(through)
            assert node.end_tokens == sum(atom.tokens for atom in path(letters))
            assert abs(node.load_s - len(through)) < 1e-9

    @invariant()
    def nothing_that_is_equal_is_told_apart(self) -> None:
        """A node with an only child differs from it in holders or uses."""
        for node in self.trees.walk():
            if len(node.children) == 1:
                (child,) = node.children.values()
                assert node.uses != child.uses or node.holders.keys() != child.holders.keys()


TestBeliefs = Beliefs.TestCase
TestBeliefs.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
