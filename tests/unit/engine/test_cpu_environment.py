"""The CPU engine's environment, and the stand-in for sgl_kernel as another process sees it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from prism_ray.engine.cpu.environment import (
    ATTENTION_BACKEND,
    STAND_IN_DIR,
    cpu_engine_args,
    cpu_environment,
)


def without_cuda() -> bool:
    return False


def with_cuda() -> bool:
    return True


def run_python(code: str, variables: dict[str, str]) -> str:
    environment = {**os.environ, **variables}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_without_cuda_the_stand_in_comes_first_on_pythonpath() -> None:
    variables = cpu_environment(inherited={"PYTHONPATH": "/mine"}, cuda_probe=without_cuda)
    assert variables["PYTHONPATH"].split(os.pathsep) == [str(STAND_IN_DIR), "/mine"]


def test_an_empty_pythonpath_leaves_no_empty_entry_which_would_mean_the_working_directory() -> None:
    for inherited in ({}, {"PYTHONPATH": ""}):
        variables = cpu_environment(inherited=inherited, cuda_probe=without_cuda)
        assert variables["PYTHONPATH"] == str(STAND_IN_DIR)


def test_with_cuda_the_installed_kernels_stay_first() -> None:
    variables = cpu_environment(inherited={"PYTHONPATH": "/mine"}, cuda_probe=with_cuda)
    assert "PYTHONPATH" not in variables


@pytest.mark.parametrize("probe", [without_cuda, with_cuda])
def test_the_engine_is_told_to_use_the_cpu_our_plugin_and_few_threads(probe) -> None:  # type: ignore[no-untyped-def]
    variables = cpu_environment(threads=3, inherited={}, cuda_probe=probe)
    variables.pop("PYTHONPATH", None)
    assert variables == {
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_PLUGINS": "prism_ray",
        "OMP_NUM_THREADS": "3",
        "OMP_WAIT_POLICY": "passive",
    }


def test_fewer_than_one_thread_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        cpu_environment(threads=0, cuda_probe=without_cuda)


def test_the_current_environment_is_not_touched() -> None:
    before = dict(os.environ)
    cpu_environment(cuda_probe=without_cuda)
    assert dict(os.environ) == before


def test_the_arguments_select_our_attention_and_pages_of_one_token() -> None:
    args = cpu_engine_args()
    assert args["attention_backend"] == ATTENTION_BACKEND == "prism_cpu"
    assert args["page_size"] == 1


def test_a_process_with_the_environment_imports_the_stand_in_not_the_installed_package() -> None:
    code = "import sgl_kernel; print(sgl_kernel.__file__)"
    variables = cpu_environment(cuda_probe=without_cuda)
    assert run_python(code, variables) == str(STAND_IN_DIR / "sgl_kernel" / "__init__.py")


def test_names_can_be_imported_from_the_stand_in_and_raise_when_called() -> None:
    code = """
from sgl_kernel import rmsnorm
try:
    rmsnorm(1, eps=2)
except RuntimeError as error:
    print(error)
"""
    message = run_python(code, cpu_environment(cuda_probe=without_cuda))
    assert message.startswith("sgl_kernel.rmsnorm was called, but no CUDA device was found")


def test_submodules_of_the_stand_in_are_absent_so_optional_imports_fall_back() -> None:
    code = """
try:
    from sgl_kernel.kvcacheio import transfer_kv_all_layer
except ImportError as error:
    print(type(error).__name__, error.name)
import sgl_kernel
print(hasattr(sgl_kernel, "__wrapped__"))
"""
    lines = run_python(code, cpu_environment(cuda_probe=without_cuda)).splitlines()
    assert lines == ["ModuleNotFoundError sgl_kernel.kvcacheio", "False"]
