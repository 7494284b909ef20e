"""`prism-loadgen answers`, with an engine that answers by what stands first in its prompt."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from loadgen.cli import main
from loadgen.quality import command
from prism_ray.engine.base import EngineCall, ResponseChunk

QUESTIONS = 24
HOT = "passage hot of all"


class FirstPassage:
    """Says the gold answer if the hot passage stands first, else something else."""

    def __init__(self) -> None:
        self.asked = 0

    async def submit(self, call: EngineCall) -> AsyncIterator[ResponseChunk]:
        self.asked += 1
        parts = call.body["messages"][1]["content"]
        said = "Ann" if HOT in parts[0]["text"] else "nobody"
        usage = {"prompt_tokens": len(call.prompt_ids), "prompt_tokens_details": None}
        payload = {"choices": [{"message": {"content": said}}], "usage": usage}

        async def chunks() -> AsyncIterator[ResponseChunk]:
            yield ResponseChunk(payload)

        return chunks()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FirstPassage:
    engine = FirstPassage()

    @asynccontextmanager
    async def running(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        yield SimpleNamespace(engine=engine, info=SimpleNamespace(context_length=4096))

    monkeypatch.setattr(command, "running_engine", running)
    return engine


@pytest.fixture(autouse=True)
def _questions(put: Any) -> None:
    """Questions whose evidence is their own, in front of a hot passage that many lists have."""
    lists = [[HOT, *(f"passage {n} number {s} " * 20 for s in range(4))] for n in range(QUESTIONS)]
    put("psi-rag-retrieval/multihoprag_keyword.json", {"retrieved_docs": lists})
    names = [str(n) for n in range(QUESTIONS)]
    asked = [{"id": n, "question": f"who {n}", "question_type": "inference_query"} for n in names]
    put("multihop-rag/queries.json", {"queries": asked})
    evidence = [{"fact": HOT}]
    truth = {n: {"answer": "Ann", "evidence_list": evidence} for n in names}
    put("multihop-rag/ground_truth.json", truth)


def measure(path: Path, *more: str) -> Result:
    arguments = ["answers", "--json", str(path), "--model", "builtin", "--knee", "40"]
    arguments += ["--questions", "16", "--policy", "fcfs", "--policy", "qas", "--load", "50"]
    return CliRunner().invoke(main, [*arguments, *more], catch_exceptions=False)


def test_every_arm_is_scored_on_the_orders_that_it_dispatched(
    engine: FirstPassage, tmp_path: Path
) -> None:
    path = tmp_path / "answers.json"
    result = measure(path)
    assert result.exit_code == 0, result.output
    report = json.loads(path.read_text())
    arms = report["arms"]
    assert list(arms) == ["original", command.AGAIN, "random", "fcfs at 50", "qas at 50"]
    assert arms["fcfs at 50"]["moved"] == arms[command.AGAIN]["moved"] == 0
    assert arms["fcfs at 50"]["f1"] == arms["original"]["f1"] == arms[command.AGAIN]["f1"]
    # Under load qas writes the hot passage first, for which this model has the right answer.
    assert arms["qas at 50"]["em"]["mean"] > arms["original"]["em"]["mean"]
    assert arms["qas at 50"]["em_difference"]["low"] > 0
    assert arms["qas at 50"]["changed"]["mean"] > 0
    assert arms["qas at 50"]["policy"] == "qas"
    assert arms["qas at 50"]["simulated_qps"] == pytest.approx(2000)
    assert "| qas at 50 |" in result.output
    asked = {(a["question"], tuple(a["order"]), a["again"]) for a in report["answers"]}
    assert len(asked) == len(report["answers"]) == engine.asked, "no order is asked twice"


def test_a_run_that_was_stopped_asks_only_what_is_missing(
    engine: FirstPassage, tmp_path: Path
) -> None:
    path = tmp_path / "answers.json"
    measure(path)
    whole, asked = json.loads(path.read_text()), engine.asked
    cut = whole | {"answers": whole["answers"][5:], "arms": {}}
    path.write_text(json.dumps(cut))
    measure(path)
    again = json.loads(path.read_text())
    assert engine.asked == asked + 5
    assert again["arms"] == whole["arms"]
    more = measure(path, "--questions", "20")
    grown = json.loads(path.read_text())
    assert more.exit_code == 0
    assert grown["arms"]["original"]["questions"] == 20
    assert grown["answers"][: len(again["answers"])] == again["answers"], "none is asked again"
    engine.asked = 0
    measure(path, "--policy", "lpm", "--questions", "20")
    assert "lpm at 50" in json.loads(path.read_text())["arms"]
    assert engine.asked == 0, "lpm writes the original orders, which were asked"
    other = measure(path, "--seed", "1")
    assert other.exit_code == 1
    assert "other settings (prompts_sha256)" in other.output


def test_an_unknown_policy_is_named(engine: FirstPassage, tmp_path: Path) -> None:
    result = measure(tmp_path / "answers.json", "--policy", "best")
    assert result.exit_code == 1
    assert "best" in result.output
    assert not engine.asked
