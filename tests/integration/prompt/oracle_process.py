"""Starts SGLang's chat processing as a process (``sglang_oracle``), asks it, and ends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prism_ray.engine.cpu.environment import STAND_IN_DIR


class OracleProcess:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, tokenizer: Path, body: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        question = {"tokenizer": str(tokenizer), "body": body}
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the oracle process ended"
        answer: dict[str, Any] = json.loads(line)
        return answer


def start_oracle() -> Iterator[OracleProcess]:
    """The running oracle; ends when the caller goes on."""
    script = Path(__file__).with_name("sglang_oracle.py")
    environment = os.environ | {
        "SGLANG_USE_CPU_ENGINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "SGLANG_PLUGINS": "none",
        "PYTHONPATH": str(STAND_IN_DIR),
        "OMP_NUM_THREADS": "1",
    }
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    try:
        yield OracleProcess(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
