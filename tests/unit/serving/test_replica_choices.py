"""How the answers to several choices become one."""

from __future__ import annotations

from typing import Any

from prism_ray.serving.choices import Merger, choice_body, merged_usage

REQUEST = "a" * 32


def usage(output: int, cached: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "prompt_tokens": 10,
        "completion_tokens": output,
        "total_tokens": 10 + output,
        "prompt_tokens_details": {"cached_tokens": cached},
        **more,
    }


def chunk(text: str, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return {"id": "engine", "created": 5, "choices": [choice], **more}


class TestBodies:
    def test_a_single_choice_is_passed_on_as_it_is(self) -> None:
        body = {"stream": True, "seed": 3}
        assert choice_body(body, 0) is body

    def test_each_choice_is_one_request_with_its_own_seed(self) -> None:
        body = {"n": 3, "seed": 7, "temperature": 1.0}
        bodies = [choice_body(body, index) for index in range(3)]
        assert [b["seed"] for b in bodies] == [7, 8, 9]
        assert {b["n"] for b in bodies} == {1}
        assert body["n"] == 3

    def test_no_seed_stays_no_seed(self) -> None:
        assert "seed" not in choice_body({"n": 2}, 1)
        assert choice_body({"n": 2, "seed": None}, 1)["seed"] is None

    def test_streams_of_several_choices_carry_usage_for_us(self) -> None:
        asked = {"n": 2, "stream": True, "stream_options": {"continuous_usage_stats": True}}
        assert choice_body(asked, 1)["stream_options"] == {
            "continuous_usage_stats": True,
            "include_usage": True,
        }


class TestUsage:
    def test_the_prompt_counts_once_and_output_is_added(self) -> None:
        merged = merged_usage([usage(3, cached=4), usage(5, cached=9)])
        assert merged == usage(8, cached=4)

    def test_reasoning_is_added_up(self) -> None:
        one = usage(3, reasoning_tokens=1, completion_tokens_details={"reasoning_tokens": 1})
        two = usage(5, reasoning_tokens=2, completion_tokens_details={"reasoning_tokens": 2})
        merged = merged_usage([one, two, usage(1, completion_tokens_details=None)])
        assert merged["reasoning_tokens"] == 3
        assert merged["completion_tokens_details"] == {"reasoning_tokens": 3}


class TestWholeAnswers:
    def test_one_choice_goes_through_with_the_requests_id(self) -> None:
        merger = Merger("chat", {}, REQUEST)
        assert merger.take(0, {"id": "engine", "choices": [1]}) == {
            "id": f"chatcmpl-{REQUEST}",
            "choices": [1],
        }
        assert merger.end() is None

    def test_choices_are_in_order_whoever_was_ready_first(self) -> None:
        merger = Merger("completions", {"n": 2}, REQUEST)
        whole = {"id": "e", "created": 1}
        late = whole | {"choices": [{"index": 0, "text": "first"}], "usage": usage(2, cached=1)}
        early = whole | {"choices": [{"index": 0, "text": "second"}], "usage": usage(4, cached=9)}
        assert merger.take(1, early) is None
        assert merger.take(0, late) is None
        assert merger.end() == {
            "id": f"cmpl-{REQUEST}",
            "created": 1,
            "choices": [{"index": 0, "text": "first"}, {"index": 1, "text": "second"}],
            "usage": usage(6, cached=1),
        }


class TestStreams:
    def test_chunks_carry_their_choices_index_and_one_id(self) -> None:
        merger = Merger("chat", {"n": 2, "stream": True}, REQUEST)
        first = merger.take(0, chunk("a", usage=None))
        second = merger.take(1, chunk("b", created=6, usage=None))
        assert first is not None
        assert second is not None
        assert [c["choices"][0]["index"] for c in (first, second)] == [0, 1]
        assert first["id"] == second["id"] == f"chatcmpl-{REQUEST}"
        assert first["created"] == second["created"] == 5
        assert "usage" not in first

    def test_usage_comes_once_at_the_end_if_asked(self) -> None:
        body = {"n": 2, "stream": True, "stream_options": {"include_usage": True}}
        merger = Merger("chat", body, REQUEST)
        shown = merger.take(0, chunk("a", usage=None))
        assert shown is not None
        assert shown["usage"] is None
        assert merger.take(1, {"choices": [], "usage": usage(4, cached=9)}) is None
        assert merger.take(0, {"choices": [], "usage": usage(2, cached=1)}) is None
        assert merger.end() == {
            "id": f"chatcmpl-{REQUEST}",
            "created": 5,
            "choices": [],
            "usage": usage(6, cached=1),
        }

    def test_usage_that_was_not_asked_for_stays_here(self) -> None:
        merger = Merger("chat", {"n": 2, "stream": True}, REQUEST)
        assert merger.take(0, {"choices": [], "usage": usage(2)}) is None
        assert merger.end() is None

    def test_running_usage_is_that_of_all_choices(self) -> None:
        body = {"n": 2, "stream": True, "stream_options": {"include_usage": True}}
        merger = Merger("chat", body, REQUEST)
        merger.take(0, chunk("a", usage=usage(2)))
        shown = merger.take(1, chunk("b", usage=usage(3)))
        assert shown is not None
        assert shown["usage"]["completion_tokens"] == 5
