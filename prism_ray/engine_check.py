"""Asks the installed SGLang whether it takes a config's engine arguments; starts no engine.

SGLang's resolution changes the environment and global state, so it runs in a process of its own:
this module is also that process (``python -m prism_ray.engine_check``), reading its question as
JSON on standard input and answering on the last line of standard output.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from prism_ray.config import ConfigError, PrismConfig
from prism_ray.config_errors import Problem
from prism_ray.engine.cpu.environment import cpu_environment
from prism_ray.engine_args import (
    A800_GIB,
    ModelShape,
    PoolEstimate,
    estimate_pool,
    model_config,
    server_args,
)

TIMEOUT_S = 300.0
INSTALL_SGLANG = 'pip install "prism-ray[sglang]"'

ONLY_WEIGHTS_KNOW = "that the weights load and have these dimensions"
ONLY_A_GPU_KNOWS = (
    "that the attention, sampling and grammar kernels run on this GPU",
    "that activations and CUDA graphs fit beside the pool (mem_fraction_static leaves them the rest)",
)


@dataclass
class EngineReport:
    """What SGLang said: refusals, the resolved arguments, the pool, and what stayed open."""

    problems: list[Problem] = field(default_factory=list)
    resolved: dict[str, Any] = field(default_factory=dict)
    pool: PoolEstimate | None = None
    unchecked: list[str] = field(default_factory=list)


def check_engine_args(config: PrismConfig, gpu_gib: float = A800_GIB) -> EngineReport:
    """Build SGLang's real ServerArgs of a config, resolve them, and size the KV pool.

    The model's weights are not needed: its directory's, or the shipped, ``config.json`` is.
    """
    report = EngineReport()
    if config.engine.kind != "sglang":
        report.unchecked.append(f"engine arguments: the engine is {config.engine.kind}")
        return report
    if find_spec("sglang") is None:
        expected = f"SGLang to be installed for --engine-args: {INSTALL_SGLANG}"
        report.problems.append(Problem("engine.kind", expected, "no package sglang"))
        return report
    try:
        path = config.model.resolved_path()
    except ConfigError as error:
        report.problems += error.problems
        return report
    dimensions = model_config(path)
    with tempfile.TemporaryDirectory(prefix="prism-ray-") as scratch:
        if dimensions is None:
            report.unchecked.append(
                f"conflicts of arguments: the dimensions of {path} are not known here"
            )
        else:
            (Path(scratch) / "config.json").write_text(json.dumps(dimensions), encoding="utf-8")
        args = server_args(config, scratch, path)
        question = {
            "args": args,
            "mine": sorted(config.engine.args),
            "resolve": dimensions is not None,
        }
        answer = _ask(question, cpu=config.device == "cpu")
    report.problems += [Problem(*p) for p in answer["problems"]]
    report.resolved = answer["resolved"]
    if dimensions is not None and not report.problems:
        report.pool = estimate_pool(
            ModelShape.from_config(dimensions), {**args, **report.resolved}, gpu_gib
        )
    report.unchecked.append(ONLY_WEIGHTS_KNOW)
    report.unchecked += ONLY_A_GPU_KNOWS if config.device == "cuda" else ()
    return report


def _ask(question: dict[str, Any], cpu: bool) -> dict[str, Any]:
    environment = dict(os.environ)
    if cpu:
        environment |= cpu_environment()
    else:
        # Whoever exports it for engines of its own would have a GPU's arguments judged for a CPU.
        environment.pop("SGLANG_USE_CPU_ENGINE", None)
    child = subprocess.run(
        [sys.executable, "-m", "prism_ray.engine_check"],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        env=environment,
        timeout=TIMEOUT_S,
        check=False,
    )
    lines = child.stdout.strip().splitlines()
    if child.returncode != 0 or not lines:
        tail = child.stderr.strip().splitlines()[-1:] or [f"exit status {child.returncode}"]
        problem = ("engine.args", "SGLang to look at its arguments", tail[0])
        return {"problems": [problem], "resolved": {}}
    return dict(json.loads(lines[-1]))


# ---- the child process: from here on SGLang is imported ----


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    from sglang.srt.server_args import ServerArgs

    from prism_ray.engine.sglang_plugin import register

    register()  # our cache and attention are among the names that SGLang then knows
    args = question["args"]
    problems = [p for name in question["mine"] for p in _refusals(ServerArgs, name, args[name])]
    if problems or not question["resolve"]:
        return {"problems": problems, "resolved": {}}
    try:
        built = ServerArgs(**args)
        built.resolve_once()
        built.check_server_args()
    except Exception as error:  # whatever SGLang refuses with, its words are the finding
        expected = "arguments that go together in SGLang"
        return {"problems": [("engine.args", expected, _words(error))], "resolved": {}}
    resolved = built.resolved_dict()
    keep = (*args, "mem_fraction_static", "max_total_tokens", "chunked_prefill_size", "tp_size")
    plain = {k: v for k in keep if isinstance(v := resolved[k], int | float | str | None)}
    return {"problems": [], "resolved": plain}


def _refusals(model: type, name: str, value: object) -> Iterator[tuple[str, str, object]]:
    """Unknown names, wrong types, and values outside SGLang's own lists."""
    import msgspec

    path = f"engine.args.{name}"
    fields = {f.name: f for f in msgspec.structs.fields(model)}
    if name not in fields:
        yield path, "a field of SGLang's ServerArgs", value
        return
    try:
        msgspec.convert(value, fields[name].type)
    except msgspec.ValidationError as error:
        yield path, f"SGLang's type for it ({error})", value
        return
    except TypeError:
        pass  # a type that msgspec cannot check; SGLang itself will
    parser = argparse.ArgumentParser()
    model.add_cli_args(parser)  # type: ignore[attr-defined]
    choices = next((a.choices for a in parser._actions if a.dest == name), None)
    if choices is not None and isinstance(value, str) and value not in choices:
        yield path, f"one of {', '.join(map(str, choices))}", value


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _main() -> None:
    question = json.loads(sys.stdin.read())
    answer = _answer(question)
    print()
    print(json.dumps(answer))


if __name__ == "__main__":
    _main()
