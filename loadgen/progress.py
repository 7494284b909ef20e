"""A progress bar on standard error, for as long as somebody looks at one (click's)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click


@contextmanager
def progress(total: int, label: str = "") -> Iterator[Callable[[int], None]]:
    """Call what this gives with how many more are done. Nothing is drawn where no terminal is."""
    hidden = not sys.stderr.isatty()
    with click.progressbar(
        length=total, label=label, file=sys.stderr, show_pos=True, hidden=hidden
    ) as bar:
        yield bar.update
