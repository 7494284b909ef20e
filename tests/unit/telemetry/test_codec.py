"""What the codec writes it reads back, and what it should not read it refuses."""

from __future__ import annotations

import pickle

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism_ray.model import Decision, InFlight, Lane, ReplicaSnapshot
from prism_ray.telemetry import codec
from prism_ray.telemetry.codec import CodecError, DecisionRow, ReplicaRow, SegmentRow

counts = st.integers(min_value=0, max_value=2**40)
seconds = st.floats(min_value=0, max_value=1e12)
names = st.text(st.characters(categories=["L", "N"]), max_size=32)

snapshots = st.builds(
    ReplicaSnapshot,
    replica=names,
    incarnation=names,
    sequence=counts,
    running=counts,
    waiting=counts,
    pool_used_tokens=counts,
    prompt_tokens_total=counts,
    cached_tokens_total=counts,
    output_tokens_total=counts,
    evicted_tokens_total=counts,
    prefill_tokens_per_s=seconds,
    in_flight=st.lists(st.builds(InFlight, names, counts, counts, st.booleans()), max_size=5).map(
        tuple
    ),
)
decisions = st.builds(
    Decision,
    request_id=names,
    attempt=counts,
    epoch=names,
    replica=names,
    plan_version=counts,
    position=counts,
    order=st.lists(counts, max_size=8).map(tuple),
    lane=st.sampled_from(Lane),
    queue_s=seconds,
    predicted_cached_tokens=counts,
    signature=st.lists(st.binary(max_size=32), max_size=3).map(tuple),
    score=seconds,
    reason=names,
)


def make_decision(**changes: object) -> Decision:
    values: dict[str, object] = {
        "request_id": "r1",
        "attempt": 0,
        "epoch": "e",
        "replica": "a",
        "plan_version": 1,
        "position": 0,
        "order": (0,),
        "lane": Lane.HOT,
        "queue_s": 0.5,
        "predicted_cached_tokens": 3,
    }
    return Decision(**(values | changes))  # type: ignore[arg-type]


class TestRoundTrip:
    @given(snapshots, st.integers(-(2**40), 2**40), seconds)
    def test_a_replica_row_comes_back_equal(
        self, snapshot: ReplicaSnapshot, credit: int, at: float
    ) -> None:
        row = ReplicaRow(snapshot, credit, "degraded", at)
        assert codec.decode_replica(codec.encode_replica(row)) == row

    @given(decisions, seconds)
    def test_a_decision_comes_back_equal(self, decision: Decision, at: float) -> None:
        row = DecisionRow(decision, at)
        assert codec.decode_decision(codec.encode_decision(row)) == row

    @given(st.lists(st.builds(SegmentRow, names, names, counts, counts, counts, seconds)))
    def test_segment_rows_come_back_equal_in_order(self, rows: list[SegmentRow]) -> None:
        assert codec.decode_segments(codec.encode_segments(rows, 1.0)) == tuple(rows)

    def test_an_integral_number_passes_for_a_float(self) -> None:
        row = DecisionRow(make_decision(queue_s=1), 2)
        assert codec.decode_decision(codec.encode_decision(row)).decision.queue_s == 1.0


class TestLimits:
    def test_a_value_too_large_is_refused_on_both_sides(self) -> None:
        with pytest.raises(CodecError, match="bytes"):
            codec.encode({"x": b"0" * codec.MAX_BYTES})
        with pytest.raises(CodecError, match="bytes"):
            codec.decode(msgpack.packb({"v": codec.SCHEMA_VERSION, "x": b"0" * codec.MAX_BYTES}))

    def test_the_deepest_allowed_value_passes_and_one_deeper_does_not(self) -> None:
        value: object = 1
        for _ in range(codec.MAX_DEPTH - 1):
            value = [value]
        assert codec.decode(codec.encode({"x": value})) == {"x": value}
        with pytest.raises(CodecError, match="deeper"):
            codec.encode({"x": [value]})
        with pytest.raises(CodecError, match="deeper"):
            codec.decode(msgpack.packb({"v": codec.SCHEMA_VERSION, "x": [value]}))

    def test_types_that_msgpack_lacks_are_refused(self) -> None:
        for value in (object(), {1, 2}, 1 << 80, "\ud800"):
            with pytest.raises(CodecError):
                codec.encode({"x": value})

    def test_labels_and_reasons_are_cut_and_made_printable(self) -> None:
        rows = [SegmentRow("aa", "\x1b[31m" + "x" * 500, 0, 0, 0, 0.0)]
        label = codec.decode_segments(codec.encode_segments(rows, 0.0))[0].label
        assert len(label) == codec.MAX_LABEL_CHARS
        assert label.isprintable()
        row = DecisionRow(make_decision(reason="a\nb" + "x" * 999), 0.0)
        reason = codec.decode_decision(codec.encode_decision(row)).decision.reason
        assert len(reason) == codec.MAX_REASON_CHARS
        assert reason.isprintable()


class TestStrangeBytes:
    def test_another_version_is_told_apart_from_rubbish(self) -> None:
        with pytest.raises(codec.UnknownVersion):
            codec.decode(msgpack.packb({"v": codec.SCHEMA_VERSION + 1}))
        with pytest.raises(codec.UnknownVersion):
            codec.decode(msgpack.packb({"x": 1}))

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"\xc1",
            b"\x91" * 5000 + b"\x00",
            b"\xdd\xff\xff\xff\xff",
            msgpack.packb([1]),
            msgpack.packb({"v": 1}) + b"x",
            msgpack.packb({"v": 1, "x": msgpack.ExtType(4, b"abc")}),
            msgpack.packb({"v": 1, "x": msgpack.Timestamp(1)}),
            pickle.dumps({"v": 1}),
        ],
    )
    def test_rubbish_is_refused(self, data: bytes) -> None:
        with pytest.raises(CodecError):
            codec.decode(data)

    @given(st.binary(max_size=200))
    def test_no_bytes_raise_anything_else(self, data: bytes) -> None:
        for read in (codec.decode_replica, codec.decode_decision, codec.decode_segments):
            try:
                read(data)
            except CodecError:
                continue

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("attempt", "0"),
            ("attempt", True),
            ("queue_s", "x"),
            ("lane", "lukewarm"),
            ("order", ["0"]),
            ("order", 3),
            ("signature", ["text"]),
            ("request_id", None),
        ],
    )
    def test_a_field_of_the_wrong_type_is_refused(self, field: str, value: object) -> None:
        good = codec.decode(codec.encode_decision(DecisionRow(make_decision(), 0.0)))
        codec.decode_decision(codec.encode(good))
        with pytest.raises(CodecError):
            codec.decode_decision(codec.encode(good | {field: value}))

    def test_malformed_rows_are_refused(self) -> None:
        with pytest.raises(CodecError):
            codec.decode_segments(codec.encode({"rows": [["aa", "label", 1]]}))
        with pytest.raises(CodecError):
            codec.decode_segments(codec.encode({"rows": "aa"}))
