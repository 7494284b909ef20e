"""The one SGLang version whose internals this package is written against."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

SUPPORTED_SGLANG = "0.5.23"


class UnsupportedSglang(RuntimeError):
    """SGLang is missing or of another version; the message says what to install."""


def check_sglang_version() -> None:
    """Raise UnsupportedSglang unless exactly the supported version is installed."""
    try:
        found = version("sglang")
    except PackageNotFoundError:
        found = "none"
    if found != SUPPORTED_SGLANG:
        raise UnsupportedSglang(
            f"the sglang engine needs sglang=={SUPPORTED_SGLANG}, found {found}: "
            'pip install "prism-ray[sglang]"'
        )
