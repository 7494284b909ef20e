"""`prism-loadgen plan`: how many replicas, how far from the knee, and what hit rate is worth."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from loadgen.plan.capacity import Load, Machine, Plan, knee, replicas_for
from loadgen.plan.inputs import load_of, machine_of, plan_for, served_trace, simulated_load
from loadgen.simulate import SimSpec, parse_settings
from loadgen.sweep import Arm, find_knee

CHECK_TOLERANCE = 0.10


@click.command("plan")
@click.option("--trace", default="zipf_hotspot", show_default=True)
@click.option("--policy", default="qas", show_default=True, help="Whose hit rate to plan with.")
@click.option(
    "--hit-rate", type=click.FloatRange(0, 1, max_open=True), help="Instead of a policy's."
)
@click.option("--profile", default="a800-qwen3-4b", show_default=True, help="Name or file.")
@click.option("--prefill-rate", type=float, help="Measured uncached tokens/s of a full chunk.")
@click.option("--qps", type=float, help="Offered requests/s.  [default: 0.9 of the planned knee]")
@click.option("--replicas", type=click.IntRange(1), default=1, show_default=True)
@click.option("--slo", "slo_s", type=float, help="TTFT in seconds that the percentile must meet.")
@click.option("--percentile", type=click.FloatRange(0, 100), default=99.0, show_default=True)
@click.option("--requests", type=click.IntRange(1), default=2048, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="As in simulate.")
@click.option("--check", is_flag=True, help="Find the simulator's knee too; fail if 10% off.")
@click.option("--check-seeds", type=click.IntRange(1), default=8, show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the plan here.")
def plan(
    hit_rate: float | None,
    prefill_rate: float | None,
    qps: float | None,
    slo_s: float | None,
    percentile: float,
    settings: tuple[str, ...],
    check: bool,
    check_seeds: int,
    json_file: Path | None,
    **named: Any,
) -> None:
    """Plan capacity with equations 5 and 6 and an M/G/1 queue. An estimate, never a measurement."""
    try:
        spec = SimSpec(**named).with_options(parse_settings(settings)).filled()
        params, profile = spec.machine()
        machine = machine_of(params, profile.cost, prefill_rate)
        trace, refused = served_trace(spec)
        load = simulated_load(spec, machine) if hit_rate is None else load_of(trace, hit_rate)
        planned = knee(load, machine, spec.requests) * spec.replicas
        chosen = plan_for(load, machine, qps or 0.9 * planned, spec.replicas)
        result = _figures(chosen, planned, spec.replicas, percentile) | {"refused": refused}
        if slo_s is not None:
            offered = chosen.qps * spec.replicas
            needed = replicas_for(load, machine, offered, slo_s, percent=percentile)
            result["replicas_for_slo"] = {"slo_s": slo_s, "replicas": needed}
        if check:
            arm = Arm(spec.policy, {"policy": spec.policy})
            found = find_knee(spec, [arm], range(check_seeds)).qps
            result["simulated_knee_qps"] = found
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    click.echo(_text(result))
    if check and abs(planned / found - 1) > CHECK_TOLERANCE:
        raise click.ClickException(f"planned {planned:.2f}/s, simulated {found:.2f}/s")


def _finite(value: Any) -> Any:
    """JSON has no infinity: what grows without bound is null."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _figures(chosen: Plan, planned: float, replicas: int, percentile: float) -> dict[str, Any]:
    load, machine = chosen.load, chosen.machine
    figures = {
        "planned": True,
        "load": asdict(load),
        "machine": asdict(machine),
        "replicas": replicas,
        "qps": chosen.qps * replicas,
        "service_rate_rps": machine.request_rate(load) * replicas,
        "effective_tokens_per_s": machine.effective_tokens_per_s(load),
        "knee_qps": planned,
        "utilization": chosen.utilization,
        "wait_s": chosen.wait_s,
        "ttft_s": {
            "mean": chosen.ttft_s,
            f"p{percentile:g}": chosen.ttft_percentile_s(percentile),
        },
        "decode_s": chosen.decode_s,
        "worth_of_a_point": {
            **asdict(chosen.worth_of_a_point()),
            "knee_qps": _knee_gain(load, machine) * replicas,
        },
    }
    finite: dict[str, Any] = _finite(figures)
    return finite


def _knee_gain(load: Load, machine: Machine) -> float:
    better = Load(load.prompt_tokens, load.output_tokens, load.hit_rate + 0.01, load.variation)
    return knee(better, machine) - knee(load, machine)


def _text(result: dict[str, Any]) -> str:
    load, worth, ttft = result["load"], result["worth_of_a_point"], result["ttft_s"]
    percentile = next(name for name in ttft if name != "mean")
    lines = [
        f"load         {load['prompt_tokens']:.0f} prompt tokens, hit rate {load['hit_rate']:.1%}, "
        f"{load['output_tokens']:.0f} output tokens, c2 {load['variation']:.3f}",
        f"capacity     {result['service_rate_rps']:.2f} requests/s "
        f"({result['effective_tokens_per_s']:.0f} uncached tokens/s a replica), "
        f"knee {result['knee_qps']:.2f}/s",
        f"at {result['qps']:.2f}/s  utilization {result['utilization']:.1%}, "
        + _times(result["wait_s"], ttft, percentile),
        f"one point of hit rate: {worth['service_rate']:+.2%} capacity, "
        f"{worth['knee_qps']:+.2f}/s of knee"
        + (
            ""
            if worth["wait_s"] is None
            else f", {worth['wait_s']:+.4f} s mean wait, {worth['ttft_p99_s']:+.4f} s P99 TTFT"
        ),
    ]
    if result["refused"]:
        lines.append(
            f"{result['refused']} requests are too long for a replica: refused, not counted"
        )
    if "replicas_for_slo" in result:
        slo = result["replicas_for_slo"]
        lines.append(f"{percentile} TTFT of {slo['slo_s']:g} s needs {slo['replicas']} replicas")
    if "simulated_knee_qps" in result:
        lines.append(f"the simulator's knee: {result['simulated_knee_qps']:.2f}/s")
    return "\n".join(lines)


def _times(wait_s: float | None, ttft: dict[str, float | None], percentile: str) -> str:
    mean_s, tail_s = ttft["mean"], ttft[percentile]
    if wait_s is None or mean_s is None or tail_s is None:
        return "saturated: the queue grows without bound"
    return f"mean wait {wait_s:.3f} s, TTFT mean {mean_s:.3f} s, {percentile} {tail_s:.3f} s"
