"""A trace becomes chats: what it shares stays shared, marks say what may move, texts are real or made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from loadgen.prompts import NoTexts, made_text, plan_requests
from loadgen.sources import Wording, load_source
from loadgen.traces import Trace, TraceRequest, make_trace
from loadgen.traces.files import write_trace
from prism_ray.model import Atom, Segment, SegmentKind, Skeleton

SYSTEM = Segment(b"sys", 3, SegmentKind.SYSTEM)
DOCS = (Segment(b"d1", 4, run=0, label="one"), Segment(b"d2", 5))
SKELETON = Skeleton(SYSTEM, DOCS, (Atom(b"gap", 2), Atom(b"", 0)), 6)
TEXTS = {b"d1": "first document", b"d2": "second document"}


def trace(**fields: Any) -> Trace:
    requests = (TraceRequest("a", SKELETON, 7, arrival_s=1.5), TraceRequest("b", SKELETON, 0))
    return Trace("t", 0, {}, requests, **{"text_of": TEXTS.get, **fields})


def test_parts_are_in_the_traces_order_with_marks() -> None:
    (first, second), notes = plan_requests(trace())
    assert (first.id, first.at_s, first.body["max_tokens"]) == ("a", 1.5, 7)
    assert second.body["max_tokens"] == 1
    system, user = first.body["messages"]
    assert system == {"role": "system", "content": made_text(b"sys", 3)}
    gap, one, two, private = user["content"]
    assert gap["text"] == made_text(b"gap", 2)
    assert one["text"] == "first document"
    assert one["prism"] == {"segment": "one", "reorderable": True}
    assert two["prism"] == {"segment": b"d2".hex(), "reorderable": False}
    assert len(private["text"].split()) == 6
    assert "prism" not in gap
    assert "prism" not in private
    assert private != second.body["messages"][1]["content"][-1]  # the private rest is its own
    assert notes == ("made texts stand for 55% of the prompt tokens, a word for a token",)


def test_any_server_takes_plain_bodies_with_the_same_words() -> None:
    marked = plan_requests(trace())[0][0].body["messages"][1]["content"]
    parts = plan_requests(trace(), style="parts")[0][0].body["messages"][1]["content"]
    plain = plan_requests(trace(), style="plain", ignore_eos=True)[0][0].body
    assert parts == [{"type": "text", "text": p["text"]} for p in marked]
    assert plain["messages"][1]["content"] == "\n".join(p["text"] for p in marked)
    assert "prism" not in json.dumps([parts, plain])
    assert plain["ignore_eos"] is True


def test_made_texts_are_as_long_as_said_and_equal_for_equal_names() -> None:
    assert made_text(b"x", 40) == made_text(b"x", 40)
    assert made_text(b"x", 40) != made_text(b"y", 40)
    assert len(made_text(b"x", 40).split()) == 40


def test_without_texts_made_ones_have_to_be_asked_for() -> None:
    with pytest.raises(NoTexts, match="no texts"):
        plan_requests(trace(text_of=None))
    planned, notes = plan_requests(trace(text_of=None), texts="made")
    assert len(planned) == 2
    assert "100%" in notes[-1]


class TestSources:
    def test_a_trace_by_name_or_from_its_file_gives_the_same_bodies(self, tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl"
        write_trace(make_trace("zipf_hotspot", 3, 5), path)
        named = load_source("zipf_hotspot", 5, Wording(texts="made"), seed=3)
        filed = load_source(str(path), None, Wording(texts="made"))
        assert len(named.requests) == 5
        assert [r.body["messages"][0] for r in named.requests] == [
            r.body["messages"][0] for r in filed.requests
        ]
        assert all(r.body["stream_options"]["include_usage"] for r in named.requests)

    def test_a_file_of_bodies_is_sent_as_it_is(self, tmp_path: Path) -> None:
        path = tmp_path / "r.jsonl"
        path.write_text('{"body": {"prompt": "x"}}\n' * 3)
        source = load_source(str(path), 2, Wording(model="m"))
        assert [r.body["model"] for r in source.requests] == ["m", "m"]
        assert source.trace is None

    @pytest.mark.parametrize(
        ("name", "says"), [("nonsense", "nonsense"), ("azure-mix", "--texts made|no data")]
    )
    def test_what_cannot_be_had_is_one_line_of_error(self, name: str, says: str) -> None:
        with pytest.raises(click.ClickException, match=says):
            load_source(name, 2, Wording())
