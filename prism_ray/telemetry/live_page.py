"""The live page at ``/prism/``: an application's state as one HTML document. Pure; asks nobody.

It loads nothing: style and script are in the document, charts are drawn here. The script only fetches
the page again; without scripts the browser does. The policy that goes with the page lets exactly that
script run, and no text that a client chose is ever markup (Jinja escapes it).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from prism_ray.telemetry.live_page_chart import svg
from prism_ray.telemetry.live_page_view import View, view_of

REFRESH_S = 2


def _file(suffix: str) -> str:
    return (resources.files(__package__) / f"live_page.{suffix}").read_text(encoding="utf-8")


SCRIPT = _file("js")
_SCRIPT_HASH = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'none'",
            "style-src 'unsafe-inline'",
            f"script-src 'sha256-{_SCRIPT_HASH}'",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    ),
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""What goes with every live page."""


def page(state: Mapping[str, Any], refresh_s: int = REFRESH_S) -> str:
    """The document for a state as ``/prism/state`` tells it. ``refresh_s`` 0: it stays as it is."""
    return _render(view_of(state), refresh_s)


def unavailable(refresh_s: int = REFRESH_S) -> str:
    """The document while no scheduler answers; it looks again like any other."""
    return _render(None, refresh_s)


def _render(view: View | None, refresh_s: int) -> str:
    return _template().render(view=view, refresh_s=refresh_s)


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals.update(svg=svg, style=Markup(_file("css")), script=Markup(SCRIPT))
    return environment.from_string(_file("html"))
