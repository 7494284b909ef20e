"""The recorder of steps, driven as SGLang's hooks drive it, and its file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prism_ray.engine.sglang_steps import (
    BatchEntry,
    QueueRecord,
    StepRecord,
    StepRecorder,
    read_steps,
)


def request(rid: str, **fields: Any) -> SimpleNamespace:
    fields = {"origin_input_ids": [0] * 8, "output_ids": [], "prefix_len": 0, **fields}
    return SimpleNamespace(rid=rid, extend_end=8, **fields)


def batch(*reqs: Any, prefill: bool) -> SimpleNamespace:
    return SimpleNamespace(reqs=reqs, forward_mode=SimpleNamespace(is_extend=lambda: prefill))


class Recorded:
    """A recorder, its clock, and what it wrote."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path.open("w")
        self.now_s = 0.0
        self.recorder = StepRecorder(self.file.write, lambda: self.now_s)
        self.scheduler = SimpleNamespace(
            waiting_queue=[request("w")],
            tree_cache=SimpleNamespace(evictable_size=lambda: 30, protected_size=lambda: 12),
        )

    def run(self, made: Any, seconds: float) -> None:
        self.recorder.batch_begins(self.scheduler, made)
        self.now_s += seconds
        self.recorder.batch_ended(None, self.scheduler, made)

    def records(self) -> list[Any]:
        self.file.flush()
        return list(read_steps(self.path))


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path / "steps.jsonl")


def test_a_prefill_says_who_computed_what_and_what_was_looked_up(recorded: Recorded) -> None:
    first = request("a", prefix_len=3)
    recorded.recorder.queued(recorded.scheduler, first)
    recorded.recorder.touched(request("w"), None)
    recorded.recorder.matched(None, first, object())
    recorded.recorder.matched(None, first)  # a chunk goes on: nothing is looked up
    recorded.run(batch(first, prefill=True), 0.5)
    queued, step = recorded.records()
    assert queued == QueueRecord("queued", 0.0, "a")
    assert step == StepRecord(
        True, 0.0, 0.5, (BatchEntry("a", 3, 8),), ("w",), ("a",), ("w",), resident_tokens=42
    )
    assert (step.new_tokens, step.decode_requests, step.context_tokens) == (5, 0, 0)


def test_a_decode_step_computes_the_token_that_was_sampled_last(recorded: Recorded) -> None:
    recorded.run(batch(request("a", output_ids=[5, 6]), prefill=False), 0.1)
    (step,) = recorded.records()
    assert step.entries == (BatchEntry("a", 9, 10),)
    assert (step.new_tokens, step.decode_requests, step.context_tokens) == (0, 1, 10)


def test_lookups_belong_to_the_batch_that_they_led_to(recorded: Recorded) -> None:
    recorded.recorder.matched(None, request("a"), object())
    recorded.run(batch(request("a"), prefill=True), 0.1)
    recorded.run(batch(request("a", output_ids=[1]), prefill=False), 0.1)
    assert [step.matched for step in recorded.records()] == [("a",), ()]


def test_retractions_and_aborts_are_told_from_arrivals(recorded: Recorded) -> None:
    recorded.recorder.queued(recorded.scheduler, request("a"), is_retracted=True)
    recorded.recorder.aborted(recorded.scheduler, request("a"))
    assert [r.kind for r in recorded.records()] == ["retracted", "aborted"]


def test_an_error_ends_recording_and_never_reaches_the_scheduler(
    recorded: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    recorded.recorder.queued(recorded.scheduler, object())
    recorded.recorder.queued(recorded.scheduler, request("a"))
    assert recorded.records() == []
    assert len([r for r in caplog.records if "step recorder failed" in r.message]) == 1


def test_a_line_that_is_no_record_is_named(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text('{"kind":"lunch"}\n')
    with pytest.raises(ValueError, match="line 1 is no step record"):
        list(read_steps(path))
