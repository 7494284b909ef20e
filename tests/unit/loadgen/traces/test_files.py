"""A trace file gives back what was written, and is a Mooncake trace to those who know only that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.traces import Trace, TraceRequest, make_trace
from loadgen.traces.base import digest
from loadgen.traces.blocks import hash_ids
from loadgen.traces.files import meta_path, read_trace, write_trace
from prism_ray.model import NO_GAP, Atom, Segment, SegmentKind, Skeleton

GENERATED = [
    ("zipf_hotspot", {"gap_tokens": 3}),
    ("loogle", {}),
    ("toolbench", {"real": False, "reorderable": True}),
    ("embodied", {"real": False}),
    ("programming", {"real": False}),
    ("videoqa", {"real": False}),
]


@pytest.mark.parametrize(("name", "options"), GENERATED)
def test_reading_gives_back_what_was_written(name: str, options: dict, tmp_path: Path) -> None:
    trace = make_trace(name, seed=2, count=60, **options)
    trace = trace.timed(trace.arrivals("poisson", 10.0, seed=1))
    write_trace(trace, tmp_path / "t.jsonl")
    again = read_trace(tmp_path / "t.jsonl")
    assert again.prompts_sha256 == trace.prompts_sha256
    assert (again.name, again.seed, again.notes) == (trace.name, trace.seed, trace.notes)
    assert [r.skeleton.runs for r in again.requests] == [r.skeleton.runs for r in trace.requests]
    assert [(r.request_id, r.session, r.output) for r in again.requests] == [
        (r.request_id, r.session, r.output) for r in trace.requests
    ]
    assert [r.arrival_s for r in again.requests] == pytest.approx(
        [r.arrival_s for r in trace.requests], abs=1e-6
    )


def test_a_line_has_mooncakes_four_keys_and_segments(tmp_path: Path) -> None:
    trace = make_trace("zipf_hotspot", count=3)
    write_trace(trace, tmp_path / "t.jsonl")
    for line in (tmp_path / "t.jsonl").read_text().splitlines():
        value = json.loads(line)
        assert set(value) == {
            "timestamp",
            "input_length",
            "output_length",
            "hash_ids",
            "segments",
        }
        assert len(value["hash_ids"]) == -(-value["input_length"] // 512)
        assert sum(piece["tokens"] for piece in value["segments"]) == 1029 - 175


def test_a_mooncake_file_without_segments_is_read_block_by_block(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 500, "input_length": 1100, "output_length": 4, "hash_ids": [0, 1, 2]},
        {"timestamp": 1500, "input_length": 1024, "output_length": 5, "hash_ids": [0, 1]},
        {"timestamp": 1700, "input_length": 30, "output_length": 6, "hash_ids": [9]},
    ]
    path = tmp_path / "m.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    trace = read_trace(path)
    assert [r.skeleton.prompt_tokens for r in trace.requests] == [1100, 1024, 30]
    assert [r.skeleton.private_tokens for r in trace.requests] == [76, 0, 30]
    assert trace.requests[0].prompt()[:2] == trace.requests[1].prompt()
    assert [r.arrival_s for r in trace.requests] == [0.0, 1.0, 1.2]
    assert hash_ids(trace.requests) == [[0, 1, 2], [0, 1], [3]]


def test_a_block_that_ends_with_the_prompt_is_as_long_as_what_is_left(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [0, 1]}
    path = tmp_path / "m.jsonl"
    path.write_text(2 * (json.dumps(row) + "\n"))
    one, other = read_trace(path).requests
    assert [s.tokens for s in one.skeleton.segments] == [512, 88]
    assert one.prompt() == other.prompt()


prompts = st.lists(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from([1, 100, 511, 512, 700])), max_size=5
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=60, deadline=None)
@given(prompts)
def test_blocks_are_equal_exactly_where_all_tokens_up_to_their_end_are(
    texts: list[list[tuple[str, int]]],
) -> None:
    requests = [
        TraceRequest(
            f"r{n}",
            Skeleton(
                None,
                tuple(Segment(digest(name, tokens), tokens) for name, tokens in text),
                (NO_GAP,) * len(text),
                5,
            ),
            1,
        )
        for n, text in enumerate(texts)
    ]
    blocks = hash_ids(requests)
    written = [[(a.id, i) for a in r.prompt() for i in range(a.tokens)] for r in requests]
    for one, one_blocks in zip(written, blocks, strict=True):
        assert len(one_blocks) == -(-len(one) // 512)
        for other, other_blocks in zip(written, blocks, strict=True):
            for i in range(min(len(one_blocks), len(other_blocks))):
                end = (i + 1) * 512
                assert (one_blocks[i] == other_blocks[i]) == (one[:end] == other[:end])


def test_what_is_no_trace_is_refused_with_path_and_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    good = {"timestamp": 0, "input_length": 10, "output_length": 1, "hash_ids": [0]}
    for bad, message in [
        ("nonsense", "bad.jsonl:2: no JSON"),
        (json.dumps({**good, "hash_ids": [0, 1]}), "bad.jsonl:2: 10 tokens do not have 2 blocks"),
        (json.dumps({**good, "timestamp": "x"}), 'bad.jsonl:2: "timestamp"'),
        (json.dumps({**good, "segments": []}), 'some lines have "segments"'),
        (json.dumps({**good, "segments": [{"id": "zz"}]}), 'bad.jsonl:2: no "segments"'),
    ]:
        path.write_text(json.dumps(good) + "\n" + bad + "\n")
        with pytest.raises(ValueError, match=message):
            read_trace(path)
    path.write_text(json.dumps({**good, "segments": [{"id": "00", "tokens": 11, "kind": "text"}]}))
    with pytest.raises(ValueError, match="token counts cannot be negative"):
        read_trace(path)


def test_lines_that_were_changed_after_writing_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write_trace(make_trace("zipf_hotspot", count=3), path)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    with pytest.raises(ValueError, match=r"not the prompts that t\.jsonl\.meta\.json"):
        read_trace(path)
    meta_path(path).unlink()
    assert len(read_trace(path).requests) == 2


def test_named_rests_and_other_ids_survive(tmp_path: Path) -> None:
    skeleton = Skeleton(Segment(b"s", 2, SegmentKind.SYSTEM), (), (), 3)
    one = TraceRequest("own id", skeleton, 1, session="a", private=(Atom(b"p", 3),))
    trace = Trace("t", 0, {}, (one,))
    write_trace(trace, tmp_path / "t.jsonl")
    assert read_trace(tmp_path / "t.jsonl").requests == (one,)
