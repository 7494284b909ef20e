"""The RAG example runs against a server and says what it did."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
DATA = Path(os.environ.get("PRISM_SHARED_DATA", ROOT.parent / "shared" / "data"))


def run(url: str, data: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "examples/rag.py"), "--base-url", url, *options],
        env={**os.environ, "PRISM_SHARED_DATA": str(data), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def check(result: subprocess.CompletedProcess[str], peer: Any) -> None:
    assert result.returncode == 0, result.stdout + result.stderr
    assert "12 answered, 0 failed by tiny" in result.stdout
    assert "hit rate   50.0%" in result.stdout
    assert re.search(r"at most \(by words\): B0 \d+\.\d%  B1 \d+\.\d%", result.stdout)
    assert "12 hot" in result.stdout
    for term in ("queue_wait", "prefill", "first_token"):
        assert term in result.stdout
    assert "cached: 32 of 64 prompt tokens (predicted 30)" in result.stdout
    assert "as the model read: b, a" in result.stdout
    assert len(peer.bodies) == 14
    for body in peer.bodies:
        assert body["prism"] == {"report": True}
        assert body["max_tokens"] == 8
        system, user = body["messages"]
        assert system["role"] == "system"
        *passages, question = user["content"]
        assert 1 <= len(passages) <= 5
        assert all(p["prism"]["reorderable"] and p["prism"]["segment"] for p in passages)
        assert len({p["text"] for p in passages}) == len(passages)
        assert "prism" not in question
        assert question["text"].startswith("Question: ")
    hot, again = (body["messages"][1]["content"] for body in peer.bodies[-2:])
    assert peer.bodies[-2] in peer.bodies[:-2]
    assert again[:-1] == hot[:-1][::-1], "the same passages, the other way round"
    assert again[-1] != hot[-1]


def test_without_the_public_data_it_makes_passages(peer: Any, tmp_path: Path) -> None:
    result = run(f"{peer.url}/v1", tmp_path, "--requests", "12", "--rate", "40")
    check(result, peer)
    assert "made from a word list" in result.stdout


@pytest.mark.skipif(not DATA.joinpath("psi-rag-retrieval").is_dir(), reason="no shared data")
def test_with_the_public_data_it_sends_real_passages_and_says_what_is_ours(peer: Any) -> None:
    options = ("--requests", "12", "--rate", "40", "--passage-words", "30")
    result = run(f"{peer.url}/v1", DATA, *options)
    check(result, peer)
    assert "by us" in result.stdout
    texts = [p["text"] for b in peer.bodies for p in b["messages"][1]["content"][:-1]]
    assert max(len(t.split()) for t in texts) == 30


def test_without_a_server_it_says_how_to_start_one(tmp_path: Path) -> None:
    result = run("http://127.0.0.1:9/v1", tmp_path, "--requests", "1")
    assert result.returncode == 2
    assert "serve run prism_ray.app" in result.stdout
    assert "Traceback" not in result.stderr
