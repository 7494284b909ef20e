"""Configs against the installed SGLang's own ServerArgs: about ten seconds each, no engine starts."""

from __future__ import annotations

from argparse import ArgumentParser
from importlib.util import find_spec

import pytest

from loadgen.compare.machine import machine
from loadgen.compare.native import command_line
from prism_ray.config import PrismConfig
from prism_ray.engine_check import check_engine_args

QWEN, LLAMA = "a800-qwen3-4b", "a800-llama2-13b"

pytestmark = pytest.mark.skipif(find_spec("sglang") is None, reason="needs the sglang extra")


@pytest.mark.parametrize(("preset", "tokens"), [(QWEN, 411_478), (LLAMA, 52_110)])
def test_sglang_takes_the_papers_settings(preset, tokens):
    report = check_engine_args(PrismConfig.load(preset))
    assert report.problems == []
    assert report.pool is not None
    assert report.pool.tokens == tokens
    assert report.resolved["chunked_prefill_size"] == 8192
    assert report.unchecked


def test_unknown_names_wrong_types_and_unknown_choices_are_all_named():
    wrong = {"mem_fraction": 0.8, "chunked_prefill_size": "many", "attention_backend": "magic"}
    report = check_engine_args(PrismConfig.load({"extends": QWEN, "engine": {"args": wrong}}))
    assert sorted(p.path for p in report.problems) == [
        "engine.args.attention_backend",
        "engine.args.chunked_prefill_size",
        "engine.args.mem_fraction",
    ]
    assert report.pool is None


def test_arguments_that_contradict_each_other_are_refused_in_sglangs_words():
    conflicting = {"ple_offload_embedding": True, "cpu_offload_gb": 4}
    report = check_engine_args(PrismConfig.load({"extends": QWEN, "engine": {"args": conflicting}}))
    (problem,) = report.problems
    assert problem.path == "engine.args"
    assert "--ple-offload-embedding" in str(problem.found)


@pytest.mark.parametrize("preset", [QWEN, LLAMA])
def test_a_comparisons_native_server_understands_its_command_line(preset):
    pytest.importorskip("sglang.srt.server_args")
    from sglang.srt.server_args import ServerArgs

    host = machine(preset)
    arguments = {**host.arguments(host.workload), "schedule_policy": "hrrn"}
    parser = ArgumentParser()
    ServerArgs.add_cli_args(parser)
    told = parser.parse_args(command_line(host.model, arguments, 30_000)[3:])
    assert (told.schedule_policy, told.port, told.model_path) == ("hrrn", 30_000, host.model)
    for name, value in arguments.items():
        assert getattr(told, name) == value, name
