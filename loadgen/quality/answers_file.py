"""The file of one measurement of answers: settings, every answer, and the report. Written whole or not.

A file that is there already is gone on with, if it was made under the same settings.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadgen.quality.asking import Reply
from prism_ray.model import Order

Key = tuple[str, Order, bool]
"""Question, order, and whether it was asked for the second time."""


class OtherSettings(ValueError):
    """The file has answers to something else; the message names the settings that differ."""


@dataclass
class AnswersFile:
    """``settings`` are what an answer depends on beside its question and order; ``replies`` has what
    was answered so far, whoever asked for it.
    """

    path: Path
    settings: Mapping[str, Any]
    replies: dict[Key, Reply] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, settings: Mapping[str, Any]) -> AnswersFile:
        """Read what is there, or begin anew. Raises OtherSettings, ValueError for another JSON."""
        file = cls(path, settings)
        if not path.exists():
            return file
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            theirs, answers = kept["settings"], kept["answers"]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no file of answers: {error}") from None
        ours = json.loads(json.dumps(settings))
        differing = sorted(k for k in {*ours, *theirs} if ours.get(k) != theirs.get(k))
        if differing:
            raise OtherSettings(
                f"{path} has answers under other settings ({', '.join(differing)}): "
                "name another file, or remove it"
            )
        for row in answers:
            key = (row["question"], tuple(row["order"]), row["again"])
            file.replies[key] = Reply(row["text"], row["prompt_tokens"], row["cached_tokens"])
        return file

    def save(self, report: Mapping[str, Any] | None = None) -> None:
        """Write settings, answers and, when all are there, the report."""
        answers = [
            {"question": question, "order": list(order), "again": again, **reply._asdict()}
            for (question, order, again), reply in self.replies.items()
        ]
        whole = {"settings": self.settings, **(report or {}), "answers": answers}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=self.path.parent, suffix=".part", delete=False, encoding="utf-8"
        ) as scratch:
            scratch.write(json.dumps(whole, indent=1) + "\n")
        os.replace(scratch.name, self.path)
