"""``prism-ray explain``: asks a running application why a request went where it went, and prints it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import click

KEY_VARIABLE = "PRISM_ADMIN_KEY"


@click.command("explain")
@click.argument("request", metavar="REQUEST")
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="The application.")
@click.option("--key", envvar=KEY_VARIABLE, help=f"Admin key, if one is set. [env: {KEY_VARIABLE}]")
@click.option("--json", "as_json", is_flag=True, help="Print what the server said as it is.")
def explain_command(request: str, url: str, key: str | None, as_json: bool) -> None:
    """Why REQUEST, the id of an answer, went to its replica: the rules and what they compared.

    The last few thousand decisions are remembered.
    """
    import httpx

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    where = f"{url.rstrip('/')}/prism/explain/{quote(request, safe='')}"
    try:
        answer = httpx.get(where, headers=headers, timeout=10.0)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise click.ClickException(f"{url} does not answer: {error}") from None
    if answer.status_code != 200:
        raise click.ClickException(_message(answer))
    click.echo(answer.text if as_json else explained(answer.json()))


def explained(decision: Mapping[str, Any]) -> str:
    """``Journal.explain`` in lines for people."""
    lines = [
        f"request    {decision['request_id']} (attempt {decision['attempt']}), "
        f"decided {decision['age_s']:.1f} s ago after {decision['queue_s']:.3f} s in the window",
        f"replica    {decision['replica']}, plan {decision['plan_version']}, "
        f"position {decision['position']}",
        f"order      {' '.join(map(str, decision['order'])) or 'nothing to order'}",
        f"cached     {decision['predicted_cached_tokens']} tokens predicted",
        f"why now    {decision['lane']} lane, score {decision['score']:g}: {decision['reason']}",
    ]
    placement = decision["placement"]
    lines.append(f"why there  {placement['kind']}")
    lines += [f"  {name:<22} {_value(value)}" for name, value in placement["numbers"].items()]
    return "\n".join(lines)


def _value(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _message(answer: Any) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {answer.status_code}"
