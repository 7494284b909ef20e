"""Orders of arms: original, drawn and dispatched; each asked once; kept answers are not asked again."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from loadgen.quality.answers_file import AnswersFile, OtherSettings
from loadgen.quality.asking import Asker, Reply, messages
from loadgen.quality.orders import Arm, asked_orders, dispatched, drawn, original
from loadgen.simulate import SimSpec
from loadgen.traces import Trace, TraceRequest
from loadgen.traces.questions import Passage, Question
from prism_ray.engine.base import EngineCall, ResponseChunk
from prism_ray.model import NO_GAP, Segment, SegmentKind, Skeleton


def trace(count: int = 40, movable: bool = True) -> Trace:
    """Requests of three passages, one of them the hot one, at a place that changes."""
    requests = []
    for number in range(count):
        names = [f"own {number}", f"other {number % 7}"]
        names.insert(number % 3, "hot")
        segments = tuple(
            Segment(name.encode(), 400, SegmentKind.DOCUMENT, run=0 if movable else None)
            for name in names
        )
        requests.append(TraceRequest(f"r{number}", Skeleton(None, segments, (NO_GAP,) * 3, 40), 8))
    return Trace("made", 0, {}, tuple(requests))


SPEC = SimSpec(requests=40)


def test_an_order_by_chance_is_any_order_and_the_same_for_the_same_seed() -> None:
    counts = Counter(drawn(trace(600), seed=1).orders.values())
    assert len(counts) == 6
    assert min(counts.values()) > 60
    assert drawn(trace(9), 1) == drawn(trace(9), 1) != drawn(trace(9), 2)


def test_policies_orders_are_those_of_their_simulated_run() -> None:
    arrival = dispatched(SPEC, trace(), "fcfs", 1.2, 10.0)
    assert arrival.orders == original(trace()).orders
    assert (arrival.name, arrival.qps) == ("fcfs at 1.2", pytest.approx(12.0))
    under_load = dispatched(SPEC, trace(), "qas", 5.0, 50.0)
    moved = [r for r, order in under_load.orders.items() if order != (0, 1, 2)]
    assert moved, "under load the hot passage comes to the front"
    assert under_load.hit_rate is not None
    assert arrival.hit_rate is not None
    assert under_load.hit_rate > arrival.hit_rate
    fixed = dispatched(SPEC, trace(movable=False), "qas", 5.0, 50.0)
    assert set(fixed.orders.values()) == {(0, 1, 2)}


def test_each_order_of_a_question_is_asked_once_the_first_arms_first() -> None:
    arms = [Arm("a", {"r": (0, 1)}), Arm("b", {"r": (1, 0)}), Arm("c", {"r": (0, 1)})]
    assert asked_orders(arms, "r") == [(0, 1), (1, 0)]


QUESTION = Question(
    "q",
    "Who?",
    "inference_query",
    "Ann",
    (Passage("First it rains.", False), Passage("Then Ann came.", True)),
)


class Echo:
    """An engine that answers with how many ids it was given, and keeps the calls."""

    def __init__(self) -> None:
        self.calls: list[EngineCall] = []

    async def submit(self, call: EngineCall) -> Any:
        self.calls.append(call)
        usage = {"prompt_tokens": len(call.prompt_ids), "prompt_tokens_details": None}
        payload = {"choices": [{"message": {"content": " Ann. "}}], "usage": usage}

        async def chunks() -> Any:
            yield ResponseChunk(payload)

        return chunks()


def test_the_engine_gets_the_passages_in_the_order_and_the_question_behind_them() -> None:
    engine: Any = Echo()
    asker = Asker(engine, "builtin", 2048, 16, {"seed": 1})
    replies = [asyncio.run(asker.ask(QUESTION, order)) for order in ((0, 1), (1, 0))]
    assert [reply.text for reply in replies] == ["Ann.", "Ann."]
    first, second = engine.calls
    assert sorted(first.prompt_ids) == sorted(second.prompt_ids)
    assert first.prompt_ids != second.prompt_ids
    assert first.request_id != second.request_id
    assert (first.body["temperature"], first.body["max_tokens"], first.body["seed"]) == (0, 16, 1)
    text = asker.written(QUESTION, (1, 0)).text
    assert text.index("Ann came") < text.index("it rains") < text.index("Question: Who?")
    assert messages(QUESTION)[0]["role"] == "system"


def test_answers_that_are_there_are_kept_and_those_to_something_else_are_refused(
    tmp_path: Path,
) -> None:
    path = tmp_path / "answers.json"
    file = AnswersFile.open(path, {"model": "m", "loads": (0.9,)})
    file.replies["q", (1, 0), True] = Reply("Ann", 9, 4)
    file.save({"arms": {}})
    again = AnswersFile.open(path, {"model": "m", "loads": (0.9,)})
    assert again.replies == file.replies
    assert json.loads(path.read_text())["arms"] == {}
    with pytest.raises(OtherSettings, match=r"\(loads, model\)"):
        AnswersFile.open(path, {"model": "n", "loads": (1.2,)})
    path.write_text("[]")
    with pytest.raises(ValueError, match="no file of answers"):
        AnswersFile.open(path, {})
    assert [p.name for p in tmp_path.iterdir()] == ["answers.json"], "no scratch file is left"
