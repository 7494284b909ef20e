"""Stands where the CUDA-only ``sgl_kernel`` cannot be imported; it computes nothing.

SGLang's CPU path imports names from ``sgl_kernel`` but, without Intel AMX, calls none of them: each
layer has a plain torch path. Every name exists here, and raises when it is called.
"""

from __future__ import annotations

from typing import NoReturn

__version__ = "0+prism_ray.cpu"


class MissingKernel:
    """An operator of the CUDA build; calling it raises RuntimeError."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<missing sgl_kernel.{self.name}>"

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise RuntimeError(
            f"sgl_kernel.{self.name} was called, but no CUDA device was found and this process runs "
            "SGLang's CPU path with prism_ray's stand-in for sgl_kernel. The model or the engine "
            "arguments need an operator that has no plain torch path."
        )


def __getattr__(name: str) -> MissingKernel:
    if name.startswith("__"):  # what Python itself asks of modules stays absent
        raise AttributeError(name)
    return MissingKernel(name)
