"""The environment and the arguments with which SGLang serves on a CPU.

SGLang decides at import time, in each of its processes, whether it runs on a CPU; so the variables
here must be set before ``sglang`` is imported. Nothing here imports SGLang.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

STAND_IN_DIR = Path(__file__).with_name("stand_in")
ATTENTION_BACKEND = "prism_cpu"
PLUGIN_NAME = "prism_ray"


def cuda_driver_exists() -> bool:
    """Whether the CUDA build of ``sgl_kernel`` can be imported; asks the loader, initializes nothing."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def cpu_environment(
    threads: int = 1,
    inherited: Mapping[str, str] | None = None,
    cuda_probe: Callable[[], bool] = cuda_driver_exists,
) -> dict[str, str]:
    """The variables to set for the engine's processes, on top of ``inherited`` (the current ones).

    ``threads``: OpenMP threads of the scheduler process; never more than the cores that are free,
    since threads that wait for each other's core make a prefill many times slower. Where ``cuda_probe``
    says yes the installed ``sgl_kernel`` can be imported and is used; elsewhere the stand-in comes
    first on PYTHONPATH. Raises ValueError for fewer than one thread.
    """
    if threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    variables = {
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_PLUGINS": PLUGIN_NAME,
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "passive",
    }
    if not cuda_probe():
        existing = (os.environ if inherited is None else inherited).get("PYTHONPATH")
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(STAND_IN_DIR), existing]))
    return variables


def cpu_engine_args() -> dict[str, Any]:
    """Arguments of ``sglang.Engine`` for a CPU; pool, context and chunk sizes are the caller's."""
    return {
        "device": "cpu",
        "dtype": "float32",  # bfloat16 has no fast path without AMX
        "attention_backend": ATTENTION_BACKEND,
        "sampling_backend": "pytorch",
        "grammar_backend": "xgrammar",
        "page_size": 1,
        "disable_overlap_schedule": True,  # nothing to overlap: model and scheduler share the cores
        "sleep_on_idle": True,  # an idle scheduler would hold a core
    }
