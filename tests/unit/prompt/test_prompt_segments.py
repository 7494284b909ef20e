"""What becomes system, segment, gap and private: by the client's marks, and without them."""

from __future__ import annotations

from typing import Any

import pytest

from prism_ray.model import SegmentKind
from prism_ray.prompt import PreparedPrompt, PromptLimits, PromptTokenizer, Splitter

LONG = "The city council met on Tuesday to vote on the new harbour bridge."
OTHER = "Customers may cancel a reservation within 24 hours of booking."
TOOL = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search the web",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
    },
}


def part(text: str, label: str = "", reorderable: bool = True) -> dict[str, Any]:
    plain: dict[str, Any] = {"type": "text", "text": text}
    if label:
        plain["prism"] = {"segment": label, "reorderable": reorderable}
    return plain


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def chat(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": list(messages), **more}


def texts(prepared: PreparedPrompt, tokenizer: PromptTokenizer) -> list[str]:
    """The segments' tokens as text, in native order."""
    assembled = prepared.assemble()
    ends = [*assembled.boundaries]
    offset = 1 if prepared.skeleton.system else 0
    return [
        tokenizer.decode(assembled.prompt_ids[end - segment.tokens : end])
        for segment, end in zip(prepared.skeleton.segments, ends[offset:], strict=False)
    ]


@pytest.fixture
def tokenizer(builtin: Splitter) -> PromptTokenizer:
    return builtin._tokenizer


def test_marked_parts_become_segments_in_a_run_with_the_joining_space_as_gap(
    builtin: Splitter, tokenizer: PromptTokenizer
) -> None:
    body = chat(
        {"role": "system", "content": "Be brief."},
        user(part("Read:"), part(LONG, "a"), part(OTHER, "b"), part("short", "c"), part("Why?")),
    )
    prepared = builtin.chat(body, b"t")
    skeleton = prepared.skeleton
    assert texts(prepared, tokenizer) == [LONG, OTHER, "short"]
    assert skeleton.runs == ((0, 1, 2),)
    assert [s.label for s in skeleton.segments] == ["a", "b", "c"]
    assert {s.kind for s in skeleton.segments} == {SegmentKind.DOCUMENT}
    assert skeleton.gaps[1] == skeleton.gaps[2]
    assert skeleton.gaps[1].tokens == 1
    assert skeleton.system is not None
    end = skeleton.system.tokens
    head = tokenizer.decode(prepared.assemble().prompt_ids[:end])
    assert head == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n"
    assert prepared.labels == ("a", "b", "c")


def test_reordering_moves_the_parts_of_the_body_too(builtin: Splitter) -> None:
    body = chat(user(part(LONG, "a"), part(OTHER, "b"), part("Why?")), prism={"report": True})
    before = repr(body)
    assembled = builtin.chat(body, b"t").assemble((1, 0))
    assert [p["text"] for p in assembled.body["messages"][0]["content"]] == [OTHER, LONG, "Why?"]
    assert "prism" not in repr(assembled.body)
    assert f"{OTHER} {LONG} Why?" in assembled.text
    assert repr(body) == before


def test_named_segments_follow_the_order(builtin: Splitter) -> None:
    prepared = builtin.chat(chat(user(part(LONG, "a"), part(OTHER, "b"), part("?"))), b"t")
    a, b = (segment.id for segment in prepared.skeleton.segments)
    assert prepared.assemble().segments == (a, b, None)
    assert prepared.assemble((1, 0)).segments == (b, a, None)


@pytest.mark.parametrize(
    "between",
    [part("and"), part(""), part(LONG, "pin", reorderable=False)],
    ids=["text", "empty text", "pinned segment"],
)
def test_whatever_stands_between_ends_a_run(builtin: Splitter, between: dict[str, Any]) -> None:
    body = chat(
        user(part("one", "a"), part("two", "b"), between, part("three", "c"), part("four", "d")),
    )
    skeleton = builtin.chat(body, b"t").skeleton
    labels = [[skeleton.segments[slot].label for slot in run] for run in skeleton.runs]
    assert labels == [["a", "b"], ["c", "d"]]


def test_a_message_boundary_ends_a_run(builtin: Splitter) -> None:
    body = chat(
        user(part("one", "a"), part("two", "b")),
        {"role": "assistant", "content": "ok"},
        user(part("three", "c"), part("four", "d")),
    )
    skeleton = builtin.chat(body, b"t").skeleton
    assert skeleton.runs == ((0, 1), (2, 3))


def test_an_order_that_leaves_a_run_is_refused(builtin: Splitter) -> None:
    body = chat(user(part("one", "a"), part("two", "b"), part("x"), part("three", "c")))
    with pytest.raises(ValueError, match="may not move"):
        builtin.chat(body, b"t").assemble((2, 1, 0))


def test_marked_segments_without_reordering_leave_the_whole_text_tokenized_at_once(
    builtin: Splitter, tokenizer: PromptTokenizer
) -> None:
    body = chat(user(part("harb", "a", reorderable=False), part("our", "b", reorderable=False)))
    prepared = builtin.chat(body, b"t")
    assert prepared.assemble().prompt_ids == tokenizer.encode(prepared.assemble().text)
    assert [s.run for s in prepared.skeleton.segments] == [None, None]


def test_anchors_inside_a_token_are_rounded_down(
    builtin: Splitter, tokenizer: PromptTokenizer
) -> None:
    assert tokenizer.encode("The harbour") == tokenizer.encode("The") + tokenizer.encode(" harbour")
    body = {
        "prism": {
            "segments": [
                {"label": "a", "text": "The harb"},
                {"label": "b", "text": "our bridge"},
            ]
        }
    }
    prepared = builtin.completions(body, b"t")
    assert prepared.assemble().prompt_ids == tokenizer.encode("The harbour bridge")
    cut = prepared.assemble().boundaries[0]
    before = tokenizer.decode(prepared.assemble().prompt_ids[:cut])
    assert "The harb".startswith(before)
    assert before != "The harbour"


def test_long_parts_are_segments_in_place_and_the_last_text_is_private(
    builtin: Splitter, tokenizer: PromptTokenizer
) -> None:
    body = chat(user(part(LONG), part("no"), part(OTHER), part("Why? " * 20)))
    prepared = builtin.chat(body, b"t")
    assert [t.strip() for t in texts(prepared, tokenizer)] == [LONG, OTHER]
    assert prepared.skeleton.runs == ()
    assert prepared.skeleton.private_tokens > 20


def test_a_single_final_message_is_private(builtin: Splitter) -> None:
    skeleton = builtin.chat(chat({"role": "user", "content": LONG}), b"t").skeleton
    assert skeleton.system is None
    assert skeleton.segments == ()
    assert skeleton.private_tokens == skeleton.prompt_tokens


def test_earlier_turns_that_are_long_enough_are_segments(
    builtin: Splitter, tokenizer: PromptTokenizer
) -> None:
    body = chat(
        {"role": "developer", "content": "Rules."},
        {"role": "user", "content": LONG},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "hm"},
        {"role": "assistant", "content": OTHER},
        {"role": "user", "content": LONG},
    )
    prepared = builtin.chat(body, b"t")
    assert texts(prepared, tokenizer) == [LONG, OTHER]
    assert {s.kind for s in prepared.skeleton.segments} == {SegmentKind.TURN}


def test_the_next_turn_extends_the_path_of_the_one_before(builtin: Splitter) -> None:
    first = [{"role": "system", "content": "Policy."}, {"role": "user", "content": LONG}]
    second = [*first, {"role": "assistant", "content": OTHER}, {"role": "user", "content": "hm"}]
    third = [*second, {"role": "assistant", "content": LONG}, {"role": "user", "content": "so?"}]
    paths = []
    for messages in (second, third):
        skeleton = builtin.chat(chat(*messages), b"t").skeleton
        paths.append(skeleton.path(skeleton.native_order))
    assert len(paths[0]) > 2
    assert paths[1][: len(paths[0])] == paths[0]


def test_tool_calls_are_a_turn_without_text(builtin: Splitter, tokenizer: PromptTokenizer) -> None:
    call = {"id": "1", "function": {"name": "search", "arguments": '{"query": "harbour bridge"}'}}
    body = chat(
        {"role": "user", "content": LONG},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": OTHER},
    )
    prepared = builtin.chat(body, b"t")
    first, second = texts(prepared, tokenizer)
    assert first == LONG
    assert '"name": "search"' in second
    assert second.endswith("<|im_start|>tool\n")
    assert prepared.skeleton.gaps[1].tokens == 0


@pytest.mark.parametrize("name", ["builtin", "qwen3"])
def test_tool_schemas_are_segments_after_the_system_text(name: str, tokenizer_named: Any) -> None:
    tokenizer = tokenizer_named(name)
    splitter = Splitter(tokenizer, PromptLimits(automatic_min_tokens=6), b"s")
    stop = {"type": "function", "function": {"name": "stop", "description": "é and <so> on"}}
    messages = [{"role": "system", "content": LONG}, {"role": "user", "content": "hm"}]
    prepared = splitter.chat(chat(*messages, tools=[TOOL, stop]), b"t")
    plain = splitter.chat(chat(*messages, tools=[stop]), b"t")
    assert prepared.skeleton.system == plain.skeleton.system
    assert [s.kind for s in prepared.skeleton.segments] == [SegmentKind.TOOL, SegmentKind.TOOL]
    assert prepared.labels == ("search", "stop")
    for text, tool_name in zip(texts(prepared, tokenizer), prepared.labels, strict=True):
        assert text.startswith('{"')
        assert f'"name": "{tool_name}"' in text


def test_off_is_one_opaque_prompt_with_the_same_ids_as_automatic(builtin: Splitter) -> None:
    body = chat({"role": "system", "content": LONG}, user(part(OTHER), part("Why?")))
    off = builtin.chat(body | {"prism": {"segments": "off"}}, b"t")
    assert off.skeleton.system is None
    assert off.skeleton.segments == ()
    assert off.assemble().prompt_ids == builtin.chat(body, b"t").assemble().prompt_ids
    assert off.assemble().segments == (None,)


def test_off_overrules_marks(builtin: Splitter) -> None:
    body = chat(user(part(LONG, "a"), part(OTHER, "b")), prism={"segments": "off"})
    assert builtin.chat(body, b"t").skeleton.segments == ()


def test_marked_parts_in_the_system_message_end_the_shared_prefix(
    builtin: Splitter, tokenizer: PromptTokenizer
) -> None:
    system = {"role": "system", "content": [part(LONG), part("one", "a"), part("two", "b")]}
    prepared = builtin.chat(chat(system, {"role": "user", "content": "?"}), b"t")
    assert prepared.skeleton.system is not None
    head = prepared.assemble().prompt_ids[: prepared.skeleton.system.tokens]
    assert tokenizer.decode(head) == f"<|im_start|>system\n{LONG}"
    assert prepared.skeleton.runs == ((0, 1),)


def test_automatic_segments_stop_at_the_limit_and_marked_ones_stay(
    tokenizer: PromptTokenizer,
) -> None:
    limits = PromptLimits(segments=2, automatic_min_tokens=6)
    splitter = Splitter(tokenizer, limits, b"s")
    body = chat(user(part(LONG), part(OTHER), part(LONG), part("x", "a"), part("?")))
    skeleton = splitter.chat(body, b"t").skeleton
    assert [s.label for s in skeleton.segments] == ["", "a"]


def test_an_answer_that_is_to_be_continued_follows_the_prompt_as_private_text(
    builtin: Splitter, tokenizer: PromptTokenizer
) -> None:
    start = {"role": "assistant", "content": "The answer is"}
    body = chat(user(part(LONG, "a"), part(OTHER, "b")), start, continue_final_message=True)
    prepared = builtin.chat(body, b"t")
    for order in ((0, 1), (1, 0)):
        assembled = prepared.assemble(order)
        assert not assembled.fallback
        assert assembled.text.endswith("<|im_start|>assistant\nThe answer is")
        assert tokenizer.decode(assembled.prompt_ids) == assembled.text
        assert len(assembled.prompt_ids) == prepared.skeleton.prompt_tokens


def test_a_last_answer_that_is_not_to_be_continued_is_read_as_the_users(builtin: Splitter) -> None:
    body = chat({"role": "user", "content": "hm"}, {"role": "assistant", "content": "so?"})
    text = builtin.chat(body, b"t").assemble().text
    assert text.endswith("<|im_start|>user\nso?<|im_end|>\n<|im_start|>assistant\n")


class TestWhitespaceAtEdges:
    """Llama-2's template strips a message's edges: a blank edge there must not change the count."""

    @pytest.fixture
    def llama2(self, tokenizer_named: Any) -> Splitter:
        return Splitter(tokenizer_named("llama2"), PromptLimits(), b"s")

    def test_a_segment_with_a_blank_edge_stays_where_the_edge_would_be_stripped(
        self, llama2: Splitter
    ) -> None:
        words = ("one", "two", " three", "four", "five ")
        body = chat(user(*(part(word, word.strip()) for word in words), part("?")))
        skeleton = llama2.chat(body, b"t").skeleton
        assert [s.run for s in skeleton.segments] == [0, 0, None, 1, 1]

    def test_it_moves_where_no_edge_is_near(self, llama2: Splitter) -> None:
        body = chat(user(part("Read:"), part(" one\n", "a"), part("two", "b"), part("?")))
        prepared = llama2.chat(body, b"t")
        assert prepared.skeleton.runs == ((0, 1),)
        assert "Read: two  one\n ?" in prepared.assemble((1, 0)).text

    def test_it_moves_where_the_template_keeps_edges(self, builtin: Splitter) -> None:
        body = chat(user(part(" one\n", "a"), part("two ", "b")))
        prepared = builtin.chat(body, b"t")
        assert "user\ntwo   one\n<|im_end|>" in prepared.assemble((1, 0)).text

    def test_it_moves_where_every_part_is_stripped(self, tokenizer_named: Any) -> None:
        splitter = Splitter(tokenizer_named("parts"), PromptLimits(), b"s")
        prepared = splitter.chat(chat(user(part(" one\n", "a"), part("two ", "b"))), b"t")
        assert prepared.assemble((1, 0)).text == "[user](two)(one)[assistant]"


class TestThinkingHistory:
    """Qwen3's template drops the thinking of earlier answers: what remains is found all the same."""

    def test_an_earlier_answers_segment_is_what_the_template_kept(
        self, tokenizer_named: Any
    ) -> None:
        tokenizer = tokenizer_named("qwen3")
        splitter = Splitter(tokenizer, PromptLimits(automatic_min_tokens=6), b"s")
        thought = f"<think>\nhm\n</think>\n\n{OTHER}"
        body = chat(
            {"role": "user", "content": LONG},
            {"role": "assistant", "content": thought},
            {"role": "user", "content": "and?"},
        )
        prepared = splitter.chat(body, b"t")
        assert "hm" not in prepared.assemble().text
        assert texts(prepared, tokenizer) == [LONG, OTHER]
