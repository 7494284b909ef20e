"""Which key of a ``params`` section is wrong, found by asking whoever takes the section; no schema here.

Policies check their own parameters and say what is wrong in a ValueError. This turns that into
problems with the key's own path, whatever the policy.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prism_ray.config_errors import Problem

_KNOWN = re.compile(r"known: ([\w, -]+)$")


def parameter_problems(
    path: str, params: Mapping[str, Any], make: Callable[[Mapping[str, Any]], object]
) -> Iterator[Problem]:
    """What ``make`` finds wrong with ``params``, which stand at ``path``.

    Each key that is refused even by itself is named. If none is, they contradict each other: then the
    one that the message begins with.
    """
    failure = _failure(make, params)
    if failure is None:
        return
    alone = {name: _failure(make, {name: value}) for name, value in params.items()}
    wrong = {name: message for name, message in alone.items() if message is not None}
    if not wrong:
        first = failure.partition(":")[0]
        if first not in params:
            yield Problem(path, _expected("", failure), dict(params))
            return
        wrong = {first: failure}
    for name, message in wrong.items():
        yield Problem(f"{path}.{name}", _expected(name, message), params[name])


def _failure(make: Callable[[Mapping[str, Any]], object], params: Mapping[str, Any]) -> str | None:
    try:
        make(params)
    except (ValueError, TypeError) as error:
        return str(error)
    return None


def _expected(name: str, message: str) -> str:
    known = _KNOWN.search(message)
    if known:
        names = known[1].split(", ")
        close = difflib.get_close_matches(name, names, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        return f"one of the keys {known[1]}{hint}"
    message = message.removeprefix(f"{name}: ")
    if message.startswith("expected "):
        return message.removeprefix("expected ").partition(", got ")[0]
    if "no parameter" in message:  # none at all: the others say which are known
        return f"nothing here ({message.partition(', got ')[0]})"
    return f"another value ({message})"
