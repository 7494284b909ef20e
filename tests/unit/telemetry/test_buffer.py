"""The writer's buffer keeps the newest state, bounds the stream and can take a batch back."""

from __future__ import annotations

from prism_ray.model import Decision, Lane, ReplicaSnapshot
from prism_ray.telemetry.buffer import SegmentTable, TelemetryBuffer
from prism_ray.telemetry.codec import DecisionRow, ReplicaRow


def replica(name: str, sequence: int = 0) -> ReplicaRow:
    snapshot = ReplicaSnapshot(name, "i", sequence, 0, 0, 0, 0, 0, 0, 0, 0.0)
    return ReplicaRow(snapshot, 0, "exact", 0.0)


def decision(number: int) -> DecisionRow:
    return DecisionRow(Decision(str(number), 0, "e", "a", 1, 0, (), Lane.HOT, 0.0, 0), 0.0)


def make(decisions: int = 4, replicas: int = 2, checkpoints: int = 2) -> TelemetryBuffer:
    return TelemetryBuffer(
        max_decisions=decisions, max_replicas=replicas, max_checkpoints=checkpoints
    )


def ids(rows: tuple[DecisionRow, ...]) -> list[str]:
    return [r.decision.request_id for r in rows]


def test_of_several_snapshots_the_last_is_kept_and_none_counts_as_dropped() -> None:
    buffer = make()
    buffer.put_replica(replica("a", 1))
    buffer.put_replica(replica("a", 2))
    assert buffer.take(9).replicas == {"a": replica("a", 2)}
    assert buffer.dropped == 0


def test_beyond_the_bound_the_oldest_decisions_are_dropped_and_counted() -> None:
    buffer = make(decisions=4)
    buffer.add_decisions(decision(i) for i in range(6))
    assert ids(buffer.take(9).decisions) == ["2", "3", "4", "5"]
    assert buffer.dropped == 2


def test_a_batch_is_the_oldest_decisions_in_order_and_leaves_the_buffer() -> None:
    buffer = make()
    buffer.add_decisions(map(decision, range(3)))
    assert ids(buffer.take(2).decisions) == ["0", "1"]
    assert buffer.decisions_waiting
    assert ids(buffer.take(2).decisions) == ["2"]
    assert len(buffer) == 0


def test_a_batch_given_back_is_taken_again_in_the_same_order() -> None:
    buffer = make()
    buffer.add_decisions(map(decision, range(3)))
    buffer.give_back(buffer.take(2))
    assert ids(buffer.take(9).decisions) == ["0", "1", "2"]


def test_what_came_in_meanwhile_wins_over_what_is_given_back() -> None:
    buffer = make()
    buffer.put_replica(replica("a", 1))
    buffer.put_segments(SegmentTable((), 1.0))
    buffer.put_checkpoint("e2", {"n": 1})
    batch = buffer.take(9)
    buffer.put_replica(replica("a", 2))
    buffer.put_segments(SegmentTable((), 2.0))
    buffer.put_checkpoint("e2", {"n": 2})
    buffer.give_back(batch)
    again = buffer.take(9)
    assert again.replicas["a"].snapshot.sequence == 2
    assert again.segments is not None
    assert again.segments.at_unix_s == 2.0
    assert again.checkpoints == {"e2": {"n": 2}}


def test_giving_back_never_grows_the_stream_beyond_its_bound() -> None:
    buffer = make(decisions=4)
    buffer.add_decisions(map(decision, range(4)))
    batch = buffer.take(3)
    buffer.add_decisions(map(decision, range(4, 7)))
    buffer.give_back(batch)
    assert ids(buffer.take(9).decisions) == ["3", "4", "5", "6"]
    assert buffer.dropped == 3


def test_names_are_bounded_too() -> None:
    buffer = make(replicas=1, checkpoints=1)
    for name in "ab":
        buffer.put_replica(replica(name))
        buffer.put_checkpoint(name, {})
    assert buffer.dropped == 2
    assert len(buffer) == 2
