"""Reads a file of requests: JSON Lines of {"timestamp": ms, "body": …}. Sends nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadgen.rows import PlannedRequest


def read_requests(path: Path) -> list[PlannedRequest]:
    """The requests of ``path`` in file order.

    A line is {"timestamp": milliseconds since any origin, "body": an OpenAI body, and optionally
    "path": "chat/completions" or "completions", "id", "headers"}; other keys are left alone. Times
    are shifted so that the earliest is zero; lines without a timestamp are due at zero. ValueError
    with the line's number for a line that is not so.
    """
    requests = [_parse(line, f"{path}:{number}") for number, line in _lines(path)]
    origin_s = min((r.at_s for r in requests), default=0.0)
    return [replace(r, at_s=r.at_s - origin_s) for r in requests]


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, line


def _parse(line: str, where: str) -> PlannedRequest:
    try:
        value: Any = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where}: no JSON: {error}") from error
    if not isinstance(value, dict) or not isinstance(value.get("body"), dict):
        raise ValueError(f'{where}: expected an object with a "body" object')
    timestamp = value.get("timestamp", 0)
    if isinstance(timestamp, bool) or not isinstance(timestamp, int | float):
        raise ValueError(f'{where}: "timestamp" should be milliseconds, is {timestamp!r}')
    headers = value.get("headers", {})
    if not isinstance(headers, dict) or not all(isinstance(h, str) for h in headers.values()):
        raise ValueError(f'{where}: "headers" should be an object of strings')
    path = str(value.get("path", "chat/completions")).removeprefix("/v1/").removeprefix("/")
    return PlannedRequest(timestamp / 1000, value["body"], str(value.get("id", "")), path, headers)
