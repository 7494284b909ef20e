"""What a turn generates: nobody's until the conversation goes on, and then the next prompt's."""

from __future__ import annotations

from prism_ray.dart import (
    GENERATED,
    PRIVATE,
    Anchor,
    NodeKind,
    PrefixCache,
    skeleton_anchors,
)
from prism_ray.dart.anchors import path_keys
from prism_ray.dispatch import ExactResidency
from prism_ray.engine.cache_ledger import CacheLedger
from prism_ray.model import Atom, Segment, SegmentKind, Skeleton

SYSTEM = Segment(b"policy and tools", 50, SegmentKind.SYSTEM)
HEADER = Atom(b"header", 4)


class Conversation:
    """Turns of an agent on one cache, and QAS's copy of it."""

    def __init__(self) -> None:
        self.ledger, self.copy = CacheLedger(), ExactResidency()
        self.cache = PrefixCache(pool_tokens=1000, observer=self.ledger)
        self.turns: list[Segment] = []

    def skeleton(self, private_tokens: int) -> Skeleton:
        gaps = (HEADER,) * len(self.turns)
        return Skeleton(SYSTEM, tuple(self.turns), gaps, private_tokens)

    def ask(self, question: Segment, answer: Segment) -> tuple[int, int]:
        """Serve one turn; (predicted, actual) cached tokens."""
        skeleton = self.skeleton(HEADER.tokens + question.tokens + HEADER.tokens)
        path = skeleton.path(skeleton.native_order)
        own = (HEADER, Atom(question.id, question.tokens), HEADER)
        predicted = self.copy.match(path).cached_tokens
        actual = self.cache.match((*path, *own)).tokens
        prompt_tokens = skeleton.prompt_tokens
        anchors = skeleton_anchors(skeleton, skeleton.native_order)
        self.cache.insert((*path, *own), anchors=anchors)
        # The last token's KV is never computed.
        whole = (*path, *own, Atom(answer.id, answer.tokens))
        end = prompt_tokens + answer.tokens - 1
        generated = (
            Anchor(prompt_tokens, PRIVATE),
            Anchor(prompt_tokens + answer.tokens, GENERATED),
        )
        self.cache.insert(whole, end, (*anchors, *generated))
        for news in self.ledger.take():
            self.copy.apply(news)
        self.turns += [question, answer]
        return predicted, actual

    def kinds(self) -> list[NodeKind]:
        return [node.kind for node in self.cache.tree]


def turn(name: str, tokens: int) -> Segment:
    return Segment(name.encode(), tokens, SegmentKind.TURN)


def test_generated_tokens_are_the_next_turns_prefix_and_become_its_own() -> None:
    talk = Conversation()
    assert talk.ask(turn("q1", 20), turn("a1", 30)) == (0, 0)
    assert NodeKind.GENERATED in talk.kinds()
    predicted, actual = talk.ask(turn("q2", 10), turn("a2", 30))
    assert actual == 50 + 4 + 20 + 4 + 29
    assert predicted == 50, "an answer nobody has continued yet is no segment"
    predicted, actual = talk.ask(turn("q3", 10), turn("a3", 5))
    assert actual == 50 + (4 + 20) + (4 + 30) + (4 + 10) + 4 + 29
    assert predicted == 50 + (4 + 20) + (4 + 30), "since turn 2 the first answer is"
    talk.cache.check_integrity()


def test_an_answer_that_is_not_continued_goes_first_and_a_continued_one_stays() -> None:
    talk = Conversation()
    talk.ask(turn("q1", 20), turn("a1", 30))
    talk.ask(turn("q2", 10), turn("a2", 30))
    a1 = path_keys(talk.skeleton(0).path((0, 1, 2, 3)))[4]
    assert talk.ledger.spans()[a1] == (74, 108)
    talk.cache.evict(29)
    assert NodeKind.GENERATED not in talk.kinds()
    talk.cache.evict(10)  # the private question
    assert talk.ledger.spans()[a1] == (74, 108)
