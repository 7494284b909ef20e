"""The ledger of the reference cache equals a walk of its tree, and QAS's copy equals the ledger."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from prism_ray.dart import Anchor, NodeKind, Owner, PrefixCache, path_keys, path_tokens
from prism_ray.dispatch import ExactResidency, ResidencyState
from prism_ray.engine.cache_ledger import CacheLedger
from prism_ray.model import Atom

SIZES = {"a": 3, "b": 5, "c": 8, "s": 6, "p": 2}
"""Tokens of each text. Two texts share their front: "c" starts with what "b" is."""


def atoms(text: str) -> list[Atom]:
    if text == "c":
        return [Atom(b"b", 5), Atom(b"rest", 3)]
    return [Atom(text.encode(), SIZES[text])]


def path(texts: str) -> tuple[Atom, ...]:
    return tuple(atom for text in texts for atom in atoms(text))


def anchors(texts: str, system: bool) -> tuple[Anchor, ...]:
    keys = path_keys(tuple(Atom(text.encode(), SIZES[text]) for text in texts))
    found, offset = [], 0
    for number, (text, key) in enumerate(zip(texts, keys, strict=True)):
        offset += SIZES[text]
        kind = NodeKind.SYSTEM if system and number == 0 else NodeKind.REUSABLE
        found.append(Anchor(offset, Owner(kind, text.encode(), key)))
    return tuple(found)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["insert", "insert", "insert", "evict", "flush", "tell"]),
        st.text("abcs", min_size=1, max_size=4),
        st.integers(1, 30),
        st.booleans(),
    ),
    max_size=50,
)


@example(
    # The second half of "b" is the front of "c", whose system prefix keeps it.
    steps=[("insert", "c", 2, True), ("insert", "b", 1, True), ("insert", "b", 2, False)],
    page=1,
)
@given(steps=STEPS, page=st.sampled_from([1, 4]))
@settings(max_examples=300)
def test_ledger_walk_and_copy_agree(steps: list[tuple[str, str, int, bool]], page: int) -> None:
    ledger, copy = CacheLedger(), ExactResidency()
    cache = PrefixCache(pool_tokens=1000, page_size=page, observer=ledger)
    for action, texts, tokens, system in steps:
        if action == "insert":
            private = (Atom(b"private of %d" % tokens, 4),)
            whole = path(texts) + private
            cache.insert(whole, min(tokens, path_tokens(whole)), anchors(texts, system))
        elif action == "evict":
            cache.evict(tokens)
        elif action == "flush":
            cache.flush()
        else:
            for news in ledger.take():
                copy.apply(news)
        assert ledger.spans() == {key: (start, end) for key, start, end in cache.walk()}
    for news in ledger.take():
        copy.apply(news)
    assert copy.state is ResidencyState.EXACT
    assert copy.spans() == ledger.spans()
    copy.check_integrity()
