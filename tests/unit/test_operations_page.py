"""The operations guide says of every setting what it trades, or that it trades nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from pydantic import BaseModel

from prism_ray.config import PrismConfig

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


def settings(model: type[BaseModel], under: str = "") -> Iterator[str]:
    """Every setting by its path; of an optional section the section itself, too."""
    for name, field in model.model_fields.items():
        kinds = [field.annotation, *get_args(field.annotation)]
        inner = next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), None)
        if inner is None or under:
            yield f"{under}{name}"
        if inner is not None:
            yield from settings(inner, f"{under}{name}.")


def told() -> Iterator[str]:
    """What the section names: the first of a list by its whole path, those behind it by their names."""
    section = PAGE.read_text(encoding="utf-8").split("## What the settings trade\n")[1]
    section = section.split("\n## ")[0].split("`limits` and the round's interval")[0]
    rows = re.findall(r"^\| (`[^|]*)\|", section, re.MULTILINE)
    rows += section.split("No trade")[1].split(";")
    for row in rows:
        under = ""
        for name in re.findall(r"`([\w.]+)`", re.sub(r"\([^)]*\)", "", row)):
            under = name.rpartition(".")[0] or under
            yield f"{under}.{name.rpartition('.')[2]}"


def test_every_setting_has_a_row_and_no_row_is_of_a_setting_that_is_gone() -> None:
    found = list(told())
    lists = {"scheduler.params", "engine.args"}  # a row for each parameter that matters
    assert set(found) == set(settings(PrismConfig))
    assert sorted(n for n in found if n not in lists) == sorted({*found} - lists)
