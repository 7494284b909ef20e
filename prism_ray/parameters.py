"""Parameters of policies: names and types checked against defaults; ranges are the policy's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def checked(policy: str, given: Mapping[str, Any] | None, defaults: Mapping[str, Any]) -> Any:
    """``defaults`` with what is given in their place, as an object with those attributes.

    Raises ValueError naming a parameter that the policy does not have or whose type is not its
    default's (a whole number is a number, true and false are not).
    """
    values = dict(defaults)
    for name, value in (given or {}).items():
        if name not in defaults:
            known = f"; known: {', '.join(sorted(defaults))}" if defaults else ""
            raise ValueError(f"{policy} has no parameter {name!r}{known}")
        kind = type(defaults[name])
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise ValueError(f"{name}: expected {kind.__name__}, got {value!r}")
        values[name] = value
    return Parameters(values)


def at_least(name: str, value: float, least: float) -> None:
    """Raise ValueError unless ``value`` is at least ``least`` (nan never is)."""
    if not value >= least:
        raise ValueError(f"{name}: expected at least {least}, got {value}")


class Parameters:
    """Checked values as attributes; immutable."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_values", dict(values))

    def __getattr__(self, name: str) -> Any:
        try:
            return object.__getattribute__(self, "_values")[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("parameters do not change")
