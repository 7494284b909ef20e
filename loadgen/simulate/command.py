"""`prism-loadgen simulate`: one run in virtual time, as a JSON file and a few lines for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import yaml

from loadgen.simulate import BadSpec, SimSpec, UnknownKnee, parse_settings
from loadgen.simulate import simulate as simulate_spec
from loadgen.simulate.knees import DEFAULT_LOAD
from prism_ray.engine.profile import BadProfile
from prism_ray.registry import UnknownName


@click.command("simulate")
@click.option("--trace", default="zipf_hotspot", show_default=True, help="Name of a trace.")
@click.option("--policy", required=True, help="Name of a scheduling policy.")
@click.option("--retention", help="Name of a retention strategy. [default: the policy's own]")
@click.option(
    "--qps",
    type=float,
    help="Requests/s. [default: 0.9 of our knee for this setting, or of the nearest in replicas, scaled]",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Draws prompts and arrivals.")
@click.option("--requests", type=click.IntRange(1), default=2048, show_default=True)
@click.option("--replicas", type=click.IntRange(1), default=1, show_default=True)
@click.option("--placement", help="[default: single; least-loaded for several replicas]")
@click.option("--profile", default="a800-qwen3-4b", show_default=True, help="Name or file.")
@click.option("--arrivals", default="poisson", show_default=True, help="Arrival process.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any other option.")
@click.option("--config", "config_file", type=click.Path(exists=True, path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Write the JSON here.")
def simulate(
    config_file: Path | None, settings: tuple[str, ...], out: Path | None, **named: Any
) -> None:
    """Run one policy in virtual time. What it prints is simulated, never measured.

    \b
    --set (and --config, a YAML mapping of the same keys) take
      policy.NAME     a parameter of the policy, e.g. policy.q_cold=4
      trace.NAME      an option of the trace
      placement.NAME  a parameter of the placement
      engine.NAME     a limit of the engine, e.g. engine.pool_tokens=50000
      cost.NAME       a cost of the profile, e.g. cost.base_s=0.01
    and in_flight, tells_cache, round_interval_s, plan_delay_s, credit_delay_s.
    """
    try:
        spec = SimSpec(**named)
        if config_file is not None:
            spec = spec.with_options(_mapping(config_file))
        result = simulate_spec(spec.with_options(parse_settings(settings)))
    except (BadSpec, BadProfile, UnknownName, UnknownKnee, ValueError) as error:
        raise click.ClickException(str(error)) from None
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    click.echo(summary(result))


def _mapping(file: Path) -> Mapping[str, Any]:
    data = yaml.safe_load(file.read_text(encoding="utf-8"))
    if not isinstance(data, dict):
        raise BadSpec(f"{file}: expected a mapping of options")
    return data


def summary(result: Mapping[str, Any]) -> str:
    """A run for people; every hit rate with its bounds beside it."""
    bounds, ttft = {**result["bounds"], **result["more_bounds"]}, result["ttft_s"]
    named = "  ".join(f"{name.upper()} {_percent(bounds[name])}" for name in sorted(bounds))
    knee = result["config"]["knee"]
    lines = [
        f"simulated  {result['policy']} x {result['retention']}, {result['placement']} of "
        f"{result['replicas']}; {result['trace']}, seed {result['seed']}, "
        f"{result['requests']} requests at {result['qps']:.2f}/s"
        + (f" ({DEFAULT_LOAD:g} of the knee, {knee})" if knee else "")
        + (f" ({result['refused']} too long, refused)" if result["refused"] else ""),
        f"hit rate   {_percent(result['hit_rate'])}   bounds {named}   "
        f"h/B3 {_ratio(result['efficiency'])} (P99 wait: {_ratio(result['efficiency_p99'])})",
        f"answers    {result['throughput_rps']:.2f}/s, "
        f"{_percent(result['answered_in_arrival_period'])} in the arrival period; "
        f"longest wait {result['max_wait_s']:.2f} s",
        f"{'s':<10} " + "".join(f"{name:>9}" for name in ttft),
    ]
    for name in ("ttft_s", "queue_wait_s", "prefill_s", "first_token_s", "latency_s"):
        figures = result[name]
        cells = (f"{figures[key]:.3f}" if key in figures else "" for key in ttft)
        lines.append(f"{name.removesuffix('_s'):<11}" + "".join(f"{c:>9}" for c in cells))
    return "\n".join(lines)


def _percent(value: float | None) -> str:
    return "none" if value is None else f"{value:.2%}"


def _ratio(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"
