"""Checks a Dockerfile: known instructions, a base image of a named version. Builds nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator

from prism_ray.validate.report import Report, unpinned

INSTRUCTIONS = (
    *("ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL"),
    *("ONBUILD", "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"),
)


def check_dockerfile(text: str, report: Report) -> None:
    """A file for ``docker build``."""
    stages: set[str] = set()
    first = True
    for number, words in _instructions(text):
        instruction = words[0].upper()
        if instruction not in INSTRUCTIONS:
            report.refuse(f"line {number}", "an instruction of Dockerfiles", words[0])
            continue
        if first and instruction not in ("FROM", "ARG"):
            report.refuse(f"line {number}", "FROM first", words[0])
        first = False
        if instruction == "FROM":
            arguments = [word for word in words[1:] if not word.startswith("--")]
            image = arguments[0] if arguments else ""
            if not image:
                report.refuse(f"line {number}", "the name of an image", " ".join(words))
            elif image not in stages and "$" not in image and unpinned(image):
                report.notes.append(f"advice: image {image} names no version")
            stages |= set(arguments[2:3])
    if first:
        report.refuse(report.source, "FROM, and what follows it", text[:40])


def _instructions(text: str) -> Iterator[tuple[int, list[str]]]:
    """Instructions as words, each with the number of its first line; continued lines are joined."""
    pending: list[str] = []
    start = 0
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not pending:
            start = number
        pending.append(re.sub(r"\\\s*$", "", line))
        if not re.search(r"\\\s*$", line):
            yield start, " ".join(pending).split()
            pending = []
