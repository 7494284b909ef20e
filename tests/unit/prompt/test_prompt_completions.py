"""Completion bodies: plain prompts, ids, and listed segments."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prism_ray.prompt import PromptError, PromptLimits, PromptTokenizer, Splitter


def listed(*segments: tuple[str, bool], system: str = "", suffix: str = "") -> dict[str, Any]:
    rows = [
        {"label": f"d{n}", "text": text, "reorderable": movable}
        for n, (text, movable) in enumerate(segments)
    ]
    return {"prism": {"system": system, "segments": rows, "suffix": suffix}}


def test_a_plain_prompt_is_opaque_and_has_the_tokenizers_own_ids(
    tokenizer: PromptTokenizer, splitter: Splitter
) -> None:
    prepared = splitter.completions({"prompt": "Hello  12"}, b"t")
    assembled = prepared.assemble()
    assert assembled.prompt_ids == [*tokenizer.special_prefix, *tokenizer.encode("Hello  12")]
    assert prepared.skeleton.private_tokens == len(assembled.prompt_ids)
    assert assembled.body == {"prompt": "Hello  12"}


def test_a_list_of_one_prompt_is_that_prompt(builtin: Splitter) -> None:
    assert builtin.completions({"prompt": ["hi"]}, b"t").assemble().body == {"prompt": "hi"}
    assert builtin.completions({"prompt": [[5, 6]]}, b"t").assemble().prompt_ids == [5, 6]


def test_ids_pass_as_they_are(builtin: Splitter) -> None:
    prepared = builtin.completions({"prompt": [5, 6, 7]}, b"t")
    assert prepared.assemble().prompt_ids == [5, 6, 7]
    assert prepared.skeleton.prompt_tokens == 3


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    texts=st.lists(st.text(max_size=12), max_size=4),
    movable=st.lists(st.booleans(), min_size=4, max_size=4),
    edges=st.tuples(st.text(max_size=5), st.text(min_size=1, max_size=5)),
)
def test_every_allowed_order_is_the_pieces_put_together(
    texts: list[str],
    movable: list[bool],
    edges: tuple[str, str],
    splitter: Splitter,
) -> None:
    pairs = list(zip(texts, movable, strict=False))
    body = listed(*pairs, system=edges[0], suffix=edges[1])
    prepared = splitter.completions(body, b"t")
    skeleton = prepared.skeleton
    kept = [text for text in texts if text]
    for order in itertools.permutations(range(len(skeleton.segments))):
        try:
            skeleton.check_order(order)
        except ValueError:
            continue
        assembled = prepared.assemble(order)
        if len(kept) == len(order):
            assert assembled.text == edges[0] + "".join(kept[i] for i in order) + edges[1]
        assert len(assembled.prompt_ids) == skeleton.prompt_tokens
        assert assembled.body == {"prompt": assembled.text}


def test_listed_segments_move_and_keep_their_ids(builtin: Splitter) -> None:
    body = listed(("one\n", True), ("two\n", True), system="Read.\n", suffix="Why?")
    prepared = builtin.completions(body | {"max_tokens": 3}, b"t")
    assembled = prepared.assemble((1, 0))
    assert assembled.text == "Read.\ntwo\none\nWhy?"
    assert builtin._tokenizer.decode(assembled.prompt_ids) == assembled.text
    assert assembled.body == {"prompt": assembled.text, "max_tokens": 3}
    assert prepared.skeleton.system is not None
    assert prepared.labels == ("d0", "d1")


def test_the_special_tokens_in_front_are_part_of_the_system(
    tokenizer_named: Callable[[str], PromptTokenizer],
) -> None:
    tokenizer = tokenizer_named("llama2")
    splitter = Splitter(tokenizer, PromptLimits(), b"s")
    for system in ("Read. ", ""):
        body = listed(("one ", True), ("two ", True), system=system, suffix="Why?")
        prepared = splitter.completions(body, b"t")
        ids = prepared.assemble((1, 0)).prompt_ids
        assert ids[0] == tokenizer.bos_token_id
        assert tokenizer.bos_token_id not in ids[1:]
        assert len(ids) == prepared.skeleton.prompt_tokens
        assert tokenizer.decode(ids[1:]).strip() == f"{system}two one Why?"


BAD = {
    "nothing": ({}, "prompt"),
    "empty": ({"prompt": ""}, "prompt"),
    "empty list": ({"prompt": []}, "prompt"),
    "two prompts": ({"prompt": ["a", "b"]}, "prompt"),
    "two id lists": ({"prompt": [[1], [2]]}, "prompt"),
    "negative id": ({"prompt": [1, -1]}, "prompt[1]"),
    "unknown id": ({"prompt": [10**9]}, "prompt[0]"),
    "bool id": ({"prompt": [True]}, "prompt[0]"),
    "number": ({"prompt": 3}, "prompt"),
    "both": ({"prompt": "x", **listed(("a", True))}, "prompt"),
    "system without list": ({"prompt": "x", "prism": {"system": "a"}}, "prism.system"),
    "suffix is a number": ({"prism": {"segments": [], "suffix": 3}}, "prism.suffix"),
    "segments is text": ({"prompt": "x", "prism": {"segments": "on"}}, "prism.segments"),
    "segment is text": ({"prism": {"segments": ["a"]}}, "prism.segments[0]"),
    "no label": ({"prism": {"segments": [{"text": "a"}]}}, "prism.segments[0].label"),
    "no text": ({"prism": {"segments": [{"label": "a"}]}}, "prism.segments[0].text"),
    "unknown": ({"prism": {"segments": [{"label": "a", "txt": "b"}]}}, "prism.segments[0].txt"),
    "all empty": (listed(("", True)), "prompt"),
    "surrogate": ({"prompt": "\udfff"}, "prompt"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_completion_body_is_refused_with_its_path(name: str, builtin: Splitter) -> None:
    body, path = BAD[name]
    with pytest.raises(PromptError) as caught:
        builtin.completions(body, b"t")
    assert caught.value.path == path
