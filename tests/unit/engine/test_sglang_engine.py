"""The replica's side of the SGLang engine, as far as it works without an engine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from prism_ray.engine import ENGINES
from prism_ray.engine.base import EngineCall, EngineDied
from prism_ray.engine.sglang import SglangEngine
from prism_ray.engine.sglang_version import (
    SUPPORTED_SGLANG,
    UnsupportedSglang,
    check_sglang_version,
)


def test_importing_the_adapter_imports_neither_sglang_nor_torch() -> None:
    script = (
        "import sys, prism_ray.engine.sglang, prism_ray.engine.sglang_plugin as p;"
        "print(sorted({'sglang', 'torch', 'zmq', 'ray', 'transformers'} & set(sys.modules)))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "[]"


def test_engines_are_known_by_name() -> None:
    assert list(ENGINES) == ["sglang", "simulated"]


@pytest.mark.parametrize(("name", "value"), [("schedule_policy", "lpm"), ("dp_size", 2)])
def test_an_argument_that_would_break_the_adapter_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        SglangEngine("somewhere", {name: value})


async def test_an_engine_that_was_not_started_takes_nothing() -> None:
    engine = SglangEngine("somewhere")
    with pytest.raises(EngineDied, match="not started"):
        await engine.submit(EngineCall("0" * 32, "chat", {}, [1]))
    await engine.abort("0" * 32)
    await engine.stop()


@pytest.mark.parametrize("found", ["0.5.22", None])
def test_another_version_of_sglang_is_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, found: str | None
) -> None:
    from importlib.metadata import PackageNotFoundError

    def version(_: str) -> str:
        if found is None:
            raise PackageNotFoundError
        return found

    monkeypatch.setattr("prism_ray.engine.sglang_version.version", version)
    with pytest.raises(UnsupportedSglang, match=SUPPORTED_SGLANG) as refused:
        check_sglang_version()
    assert "pip install" in str(refused.value)
