"""E2 believes of a replica's cache what its view says, and what waiting requests will bring there."""

from __future__ import annotations

from itertools import count

import pytest

from prism_ray.model import NO_GAP, Atom, ReplicaCapacity, Segment, Skeleton, Ticket
from prism_ray.placement import Choice, Path
from prism_ray.placement.e2 import E2
from prism_ray.scheduling import Match

ROOM = ReplicaCapacity(pool_tokens=100_000, max_running=64, prefill_ahead_tokens=8_192)


class Cache:
    """An engine's cache that tells what it holds: fronts of these paths of one-letter documents."""

    def __init__(self, *held: str, exact: bool = True) -> None:
        self.held = held
        self.exact = exact
        self.asked = 0

    def match(self, path: Path) -> Match:
        self.asked += 1
        letters = "".join(atom.id.decode() for atom in path)
        fronts = (letters[:n] for n in range(len(letters), 0, -1))
        front = next((f for f in fronts if any(h.startswith(f) for h in self.held)), "")
        tokens = sum(atom.tokens for atom in path[: len(front)])
        return Match(tokens, tokens)


class Desk:
    """E2 over replicas ``a``, ``b`` … with these caches; documents have 900 tokens, questions 10."""

    def __init__(self, *caches: Cache, **params: object) -> None:
        self.e2 = E2({"prefill_tokens_per_s": 1_000, "spill": False, "rebalance": False, **params})
        self.caches = dict(zip("abcd", caches, strict=False))
        self._numbers = count()
        self.paths: dict[str, Path] = {}
        for replica, cache in self.caches.items():
            self.e2.join(replica, ROOM, cache, 0.0)

    def place(self, documents: str) -> tuple[str, Choice]:
        segments = tuple(Segment(d.encode(), 900) for d in documents)
        skeleton = Skeleton(None, segments, (NO_GAP,) * len(segments), 10)
        ticket = Ticket(f"q{next(self._numbers)}", skeleton, 0.0)
        path = self.paths[ticket.request_id] = skeleton.path(skeleton.native_order)
        choice = self.e2.place(ticket, path, 0.0)
        self.e2.check_integrity()
        return ticket.request_id, choice

    def run(self, name: str) -> None:
        self.e2.sent(name, self.paths[name], 0, 0.0)
        self.e2.prefilled(name, 0.0)
        self.e2.released(name, 1, 0.0)

    def held(self, documents: str, replica: str) -> int:
        found = self.e2.forest.match(tuple(Atom(d.encode(), 900) for d in documents))
        if found.part is not None and replica in found.part.holders:
            return found.tokens
        ends = [node.end_tokens for node in found.nodes if replica in node.holders]
        return max(ends, default=0)


class TestWhatIsGone:
    def test_another_request_that_waits_there_does_not_make_it_true(self) -> None:
        desk = Desk(Cache("x"))
        name, _ = desk.place("x")
        desk.run(name)
        desk.caches["a"].held = ()
        desk.place("y")
        assert desk.place("x")[1].kind == "explore"

    def test_one_that_waits_there_for_the_same_will_bring_it(self) -> None:
        desk = Desk(Cache())
        desk.place("x")
        assert desk.place("x")[1].kind == "exploit"

    def test_what_waits_for_a_part_of_it_brings_that_part_only(self) -> None:
        desk = Desk(Cache("xy"))
        name, _ = desk.place("xy")
        desk.run(name)
        desk.caches["a"].held = ()
        desk.place("x")
        _, choice = desk.place("xy")
        assert desk.held("x", "a") == 900
        assert choice.numbers["cached_tokens"] == 900

    def test_the_front_that_is_left_is_still_believed(self) -> None:
        """An engine evicts from the end of a path, and nothing parts this one."""
        desk = Desk(Cache("wxyz"))
        name, _ = desk.place("wxyz")
        desk.run(name)
        desk.caches["a"].held = ("wxy",)
        _, choice = desk.place("wxyz")
        assert (choice.kind, choice.numbers["cached_tokens"]) == ("exploit", 2_700)


class TestWhatNeverCame:
    @pytest.mark.parametrize("sent", [False, True])
    def test_a_cancelled_request_brought_nothing_unless_it_was_sent(self, sent: bool) -> None:
        desk = Desk(Cache(exact=False))
        name, _ = desk.place("x")
        if sent:
            desk.e2.sent(name, desk.paths[name], 0, 0.0)
        desk.e2.released(name, None, 0.0)
        assert desk.held("x", "a") == (900 if sent else 0)

    def test_what_another_one_brings_as_well_stays(self) -> None:
        desk = Desk(Cache())
        first, _ = desk.place("xy")
        second, _ = desk.place("xz")
        desk.e2.released(first, None, 0.0)
        assert (desk.held("xy", "a"), desk.held("xz", "a")) == (900, 1_800)
        desk.e2.released(second, None, 0.0)
        assert desk.held("xz", "a") == 0

    def test_a_moved_request_takes_its_prefix_along(self) -> None:
        desk = Desk(Cache(), Cache(), spill=True, decode_balance=False)
        desk.e2.drain("b", True)
        for document in "uvw":
            desk.place(document)
        name, _ = desk.place("x")
        desk.e2.drain("b", False)
        skeleton = Skeleton(None, (Segment(b"x", 900),), (NO_GAP,), 10)
        assert desk.e2.move(Ticket(name, skeleton, 0.0), desk.paths[name], ["b"], 0.0)
        assert (desk.held("x", "a"), desk.held("x", "b")) == (0, 900)
        desk.e2.check_integrity()

    def test_an_order_that_it_was_not_sent_in_was_not_computed(self) -> None:
        desk = Desk(Cache())
        name, _ = desk.place("xy")
        desk.e2.sent(name, desk.paths[name][::-1], 0, 0.0)
        assert (desk.held("xy", "a"), desk.held("yx", "a")) == (0, 1_800)
        desk.e2.check_integrity()


class TestWhatIsTold:
    def test_a_prefix_of_which_nothing_is_known_goes_where_an_engine_has_it(self) -> None:
        """After a restart the forest is empty, and the caches are not."""
        desk = Desk(Cache(), Cache("y"), Cache("xy"))
        _, choice = desk.place("xy")
        assert (choice.replica, choice.kind) == ("c", "exploit")
        assert choice.numbers["cached_tokens"] == 1_800
        assert (desk.held("x", "a"), desk.held("y", "b")) == (0, 0)

    def test_a_view_that_only_guesses_is_not_asked(self) -> None:
        desk = Desk(Cache(), Cache("x", exact=False))
        assert desk.place("x")[1].kind == "explore"
        assert desk.caches["b"].asked == 0

    def test_nobody_is_asked_twice_about_what_is_known(self) -> None:
        desk = Desk(Cache(), Cache())
        name, choice = desk.place("x")
        desk.caches[choice.replica].held = ("x",)
        desk.run(name)
        asked = {replica: cache.asked for replica, cache in desk.caches.items()}
        desk.place("x")
        asked[choice.replica] += 1  # whether it is still there
        assert asked == {replica: cache.asked for replica, cache in desk.caches.items()}

    def test_a_front_that_all_know_is_no_reason_not_to_ask(self) -> None:
        desk = Desk(Cache("s"), Cache("sxx"))
        desk.e2.drain("b", True)
        name, _ = desk.place("s")
        desk.run(name)
        desk.e2.drain("b", False)
        assert desk.place("sxx")[1].replica == "b"
