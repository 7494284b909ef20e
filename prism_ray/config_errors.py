"""ConfigError: everything that is wrong with a config, path by path. No checking happens here."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ValidationError

FOUND_MAX_CHARS = 80


class Problem(NamedTuple):
    """One refused value: its dotted path, what was expected there, and what was found."""

    path: str
    expected: str
    found: object

    def __str__(self) -> str:
        found = repr(self.found)
        if len(found) > FOUND_MAX_CHARS:
            found = found[: FOUND_MAX_CHARS - 1] + "…"
        return f"{self.path}: expected {self.expected}; found {found}"


class ConfigError(Exception):
    """A config that cannot be used; ``problems`` lists every reason.

    Not a ValueError: pydantic would swallow it into an error of its own.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems,)


def from_validation(error: ValidationError, model: type[BaseModel]) -> ConfigError:
    """The same findings in our words; ``model`` is the class that refused."""
    return ConfigError(_problem(dict(item), model) for item in error.errors(include_url=False))


def _problem(item: dict[str, Any], model: type[BaseModel]) -> Problem:
    location = tuple(item["loc"])
    path = ".".join(map(str, location)) or "config"
    if item["type"] == "extra_forbidden":
        return Problem(path, _known_keys(location, model), item["input"])
    if item["type"] == "missing":
        return Problem(path, "a value: this key is required", None)
    return Problem(path, _expectation(item), item["input"])


def _expectation(item: dict[str, Any]) -> str:
    message: str = item["msg"]
    for prefix in ("Input should be ", "Value error, "):
        message = message.removeprefix(prefix)
    return message


def _known_keys(location: tuple[Any, ...], model: type[BaseModel]) -> str:
    keys = sorted(_section(location[:-1], model).model_fields)
    close = difflib.get_close_matches(str(location[-1]), keys, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return f"one of the keys {', '.join(keys)}{hint}"


def _section(location: tuple[Any, ...], model: type[BaseModel]) -> type[BaseModel]:
    for key in location:
        annotation = model.model_fields[key].annotation
        for candidate in (annotation, *get_args(annotation)):
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                model = candidate
    return model
