"""Retention strategies on the real engine: hit rate, TTFT, evictions and answers, arm by arm.

The same trace and the same scheduling policy for every arm, one real SGLang engine each, the cache
flushed before every run, arms in turns. Nothing here is simulated.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import click

from loadgen.bench.retention_settings import ARMS, DEFAULT_ARMS, FULL, FULL_ARMS, STANDARD, Setting
from loadgen.intervals import mean_interval
from loadgen.metrics import spread
from loadgen.real.answers import Answer, first_difference
from loadgen.real.bounds import RealBounds, run_bounds
from loadgen.real.cluster import StartedEngine
from loadgen.real.engines import engines_that_fit, random_model, running, token_ids_for
from loadgen.real.session import RealRun, run_policy
from loadgen.real.steps_file import StepsFile, steps_file
from loadgen.real.token_ids import AtomTokens
from loadgen.traces.data import DataMissing
from loadgen.validate.replay import evicted_by_class, replay
from loadgen.validate.simulation import params_of
from prism_ray.engine.sglang_steps import RETRACTED, QueueRecord

POLICY = "qas"
SEEDS = (0, 1, 2)
SHAPE = "19m"
REFERENCE = "lru"
NEAR_TIE = 1e-3
"""A top-2 distance in log-probability below which another batch may tip the choice."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one arm.

    SGLang's own cache counts evicted tokens and not what they were: there the classes come from a
    replay of the engine's recorded batches in the reference tree, and are what the engine evicted if
    the total (``replayed_tokens``) is the engine's. Other caches count classes themselves.
    """

    setting: str
    retention: str
    seed: int
    pool_share: float
    pool_tokens: int
    run: RealRun
    replayed_by_class: Mapping[str, int]
    replayed_tokens: int
    bounds: RealBounds | None = None

    def row(self, reference: Run | None) -> dict[str, Any]:
        """The row of the report; answers are compared with ``reference``'s."""
        ttft = spread(self.run.ttfts_s)
        return {
            "setting": self.setting,
            "retention": self.retention,
            "seed": self.seed,
            "pool_share": self.pool_share,
            "pool_tokens": self.pool_tokens,
            "requests": len(self.run.rows),
            "hit_rate": self.run.hit_rate,
            "bounds": None if self.bounds is None else self.bounds._asdict(),
            "ttft_s": ttft,
            "evicted_tokens": self.run.evicted_tokens,
            "evicted_tokens_by_class": dict(self.run.evicted_by_class or self.replayed_by_class),
            "evicted_classes_from": "engine" if self.run.evicted_by_class else "replay",
            "evicted_tokens_replayed": self.replayed_tokens,
            "hints_ignored": self.run.hints_ignored,
            "lateness_max_s": max(row.lateness_s for row in self.run.rows),
            "answers": None if reference is None else compare_answers(self.run, reference.run),
        }


def compare_answers(one: RealRun, other: RealRun) -> dict[str, Any]:
    """Answers of two runs of the same requests: how many are the same, and where the others part.

    Compared are requests whose segments were written in the same order in both runs: with another
    order the model reads another prompt (the order follows what waits, and that follows the clock).
    ``largest_logprob_difference`` is over the tokens that both generated alike, a finer sign of wrong
    KV than the tokens themselves.
    """
    rows = list(zip(one.rows, other.rows, strict=True))
    pairs = [(a.answer, b.answer) for a, b in rows if a.order == b.order]
    differences = [d for d in (first_difference(a, b) for a, b in pairs) if d is not None]
    return {
        "compared": len(pairs),
        "of_another_order": len(rows) - len(pairs),
        "identical": sum(a.token_ids == b.token_ids for a, b in pairs),
        "differences": [d._asdict() for d in differences],
        "all_differences_near_ties": all(d.gap < NEAR_TIE for d in differences),
        "largest_logprob_difference": max((_apart(a, b) for a, b in pairs), default=0.0),
    }


def _apart(one: Answer, other: Answer) -> float:
    """Largest distance of the log-probabilities of equal tokens, up to where the answers part."""
    largest = 0.0
    for a, b, p, q in zip(
        one.token_ids, other.token_ids, one.logprobs, other.logprobs, strict=False
    ):
        if a != b:
            break
        largest = max(largest, abs(p - q))
    return largest


async def measure(
    setting: Setting,
    arms: Sequence[str],
    seeds: Sequence[int],
    model: Path,
    told: Callable[[Sequence[Run]], None],
) -> list[Run]:
    """All arms of a setting, seed by seed, in turns as far as this machine holds their engines.

    ``told`` hears of all runs so far after each.
    """
    done: list[Run] = []
    pool_tokens = setting.pool_tokens(seeds)
    for group in _groups(arms, engines_that_fit()):
        async with AsyncExitStack() as stack:
            arms_here = {}
            for arm in group:
                steps = stack.enter_context(steps_file())
                spec = setting.engine(model, pool_tokens, ARMS[arm])
                engine = await stack.enter_async_context(running(spec, steps.environment))
                arms_here[arm] = _RunningArm(arm, engine, steps)
            for turn, seed in enumerate(seeds):
                tokens = token_ids_for(
                    model
                )  # another seed's prompts have pieces of the same names
                for arm in _turned(group, turn):
                    done.append(await _one(setting, pool_tokens, seed, arms_here[arm], tokens))
                    told(done)
    return done


class _RunningArm(NamedTuple):
    name: str
    engine: StartedEngine
    steps: StepsFile


async def _one(
    setting: Setting, pool_tokens: int, seed: int, arm: _RunningArm, tokens: AtomTokens
) -> Run:
    name = f"{setting.name}/{arm.name}/{seed}"
    arm.steps.take()
    run = await run_policy(
        arm.engine,
        setting.arrivals(seed),
        tokens,
        policy=POLICY,
        options=setting.policy_options,
        epoch=name,
        run_name=name,
        gaps=True,
    )
    params = params_of(arm.engine.info, ARMS[arm.name].retention)
    recorded = arm.steps.take()
    replayed = replay(run.submissions, recorded, params, name)
    retracted = any(isinstance(r, QueueRecord) and r.kind == RETRACTED for r in recorded)
    classes = evicted_by_class(replayed, run.submissions)
    return Run(
        setting.name,
        arm.name,
        seed,
        setting.pool_share,
        pool_tokens,
        run,
        classes,
        replayed.evicted_tokens,
        run_bounds(run, params.pool_tokens, params.page_size, retracted=retracted),
    )


def _groups(arms: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(arms), size):
        yield arms[start : start + size]


def _turned(arms: Sequence[str], by: int) -> list[str]:
    by %= len(arms)
    return [*arms[by:], *arms[:by]]


def rows_of(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Rows in the order of the runs, each beside the reference arm of its setting and seed."""
    reference = {(r.setting, r.seed): r for r in runs if r.retention == REFERENCE}
    return [
        run.row(None if run.retention == REFERENCE else reference.get((run.setting, run.seed)))
        for run in runs
    ]


def _line(run: Run) -> str:
    ttft = spread(run.run.ttfts_s)
    return (
        f"{run.setting:<14}{run.retention:<16}seed {run.seed}  hit {run.run.hit_rate:6.1%}"
        f"{'' if run.bounds is None else f' of B3 {run.bounds.b3:.1%}'}"
        f"  TTFT mean {ttft['mean']:.3f} s  p99 {ttft['p99']:.3f} s"
        f"  evicted {run.run.evicted_tokens:,}  {run.run.wall_s:.1f} s"
    )


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Means over seeds, and each arm's paired difference to the reference with its 95% interval."""
    lines = [
        f"{'setting':<14}{'retention':<16}{'hit rate':>9}{'B3':>9}{'− lru, points':>20}"
        f"{'mean TTFT, s':>14}"
    ]
    for setting in dict.fromkeys(row["setting"] for row in rows):
        here = [row for row in rows if row["setting"] == setting]
        hits = {(r["retention"], r["seed"]): r["hit_rate"] for r in here}
        for arm in dict.fromkeys(row["retention"] for row in here):
            own = [row for row in here if row["retention"] == arm]
            paired = [
                100 * (r["hit_rate"] - hits[REFERENCE, r["seed"]])
                for r in own
                if (REFERENCE, r["seed"]) in hits
            ]
            mean, half = mean_interval(paired)
            difference = "" if arm == REFERENCE or not paired else f"{mean:+.2f} ± {half:.2f}"
            hit, ttft = fmean(r["hit_rate"] for r in own), fmean(r["ttft_s"]["mean"] for r in own)
            known = [row["bounds"]["b3"] for row in own if row.get("bounds")]
            bound = f"{fmean(known):.2%}" if known else ""
            lines.append(
                f"{setting:<14}{arm:<16}{hit:>9.2%}{bound:>9}{difference:>20}{ttft:>14.3f}"
            )
    return "\n".join(lines)


@click.command("retention")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the rows here.")
@click.option("--full", is_flag=True, help="Add lfu, the 50% pool and a sweep (an hour and more).")
@click.option("--arm", "arms", multiple=True, type=click.Choice(sorted(ARMS)), help="Only these.")
@click.option("--setting", "names", multiple=True, help="Only these settings (of --full).")
@click.option("--seed", "seeds", type=int, multiple=True, default=SEEDS, show_default=True)
def retention(
    json_path: Path | None,
    full: bool,
    arms: tuple[str, ...],
    names: tuple[str, ...],
    seeds: tuple[int, ...],
) -> None:
    """Compare retention strategies on real SGLang engines (CPU, 19M parameters)."""
    settings = [s for s in (FULL if full or names else (STANDARD,)) if not names or s.name in names]
    if not settings:
        raise click.BadParameter(f"no setting of {[s.name for s in FULL]}", param_hint="--setting")
    chosen = arms or (FULL_ARMS if full else DEFAULT_ARMS)
    model = random_model(SHAPE)
    rows: list[dict[str, Any]] = []
    for setting in settings:
        if missing := _missing(setting):
            click.echo(f"{setting.name} is left out: {missing}", err=True)
            continue
        told = partial(_keep, rows, json_path)
        rows += rows_of(asyncio.run(measure(setting, chosen, seeds, model, told)))
    click.echo(table(rows))
    click.echo(answers_line(rows))


def _keep(before: Sequence[Mapping[str, Any]], path: Path | None, runs: Sequence[Run]) -> None:
    """Say what the last run came to, and write all there is: a run that is cut short keeps it."""
    click.echo(_line(runs[-1]), err=True)
    if path is not None:
        path.write_text(json.dumps([*before, *rows_of(runs)], indent=2) + "\n")


def _missing(setting: Setting) -> str:
    try:
        setting.arrivals(0)
    except DataMissing as error:
        return str(error)
    return ""


def answers_line(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the comparison of answers came to."""
    compared = [row["answers"] for row in rows if row["answers"] is not None]
    total = sum(c["compared"] for c in compared)
    reordered = sum(c["of_another_order"] for c in compared)
    same = sum(c["identical"] for c in compared)
    gaps = [d["gap"] for c in compared for d in c["differences"]]
    largest = max((c["largest_logprob_difference"] for c in compared), default=0.0)
    share = same / total if total else 1.0
    return (
        f"answers: {same} of {total} as under {REFERENCE} ({share:.2%}); "
        f"{len(gaps)} part, at top-2 gaps of at most {max(gaps, default=0.0):.1e}; "
        f"log-probabilities of equal tokens differ by at most {largest:.1e} "
        f"({reordered} more were written in another order)"
    )


if __name__ == "__main__":
    retention()
