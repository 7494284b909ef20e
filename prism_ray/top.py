"""``prism-ray top``: a running application's live page in a terminal, printed again and again."""

from __future__ import annotations

import shutil
import time
from typing import Any

import click

from prism_ray.telemetry.live_page_text import fitted, text

KEY_VARIABLE = "PRISM_ADMIN_KEY"


@click.command("top")
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="The application.")
@click.option("--key", envvar=KEY_VARIABLE, help=f"Admin key, if one is set. [env: {KEY_VARIABLE}]")
@click.option("--once", is_flag=True, help="Print once and end; exit 1 without an answer.")
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option(
    "--rows",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    help="Segments, buckets or fronts, and decisions.",
)
def top_command(url: str, key: str | None, once: bool, every_s: float, rows: int) -> None:
    """What a running application does now: window, lanes, replicas, waits, decisions. Ctrl-C ends it."""
    if once:
        click.echo(text(_state(url, key, rows), shutil.get_terminal_size((120, 0)).columns))
        return
    while True:
        width, height = shutil.get_terminal_size((120, 40))
        try:
            shown = fitted(_state(url, key, rows), width, height - 1)
        except click.ClickException as error:
            shown = error.format_message()
        click.clear()
        click.echo(shown)
        time.sleep(every_s)


def _state(url: str, key: str | None, rows: int) -> dict[str, Any]:
    """Raises ClickException, in one line."""
    import httpx

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        where = f"{url.rstrip('/')}/prism/state"
        answer = httpx.get(where, params={"top": rows}, headers=headers, timeout=10.0)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise click.ClickException(f"{url} does not answer: {error}") from None
    if answer.status_code != 200:
        raise click.ClickException(_message(answer))
    try:
        state = answer.json()
    except ValueError:
        state = None
    if not isinstance(state, dict) or "window" not in state:
        raise click.ClickException(f"{url} is no prism_ray application")
    return state


def _message(answer: Any) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {answer.status_code}"
