"""prism_ray: online LLM serving for prompts that share text. ``prism_ray.app`` is the application.

Importing this package stays light: Ray and everything heavy are loaded when ``app`` is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from prism_ray.application import build as app

__all__ = ["__version__", "app"]


def __getattr__(name: str) -> Any:
    if name == "app":
        from prism_ray.application import build

        return build
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
