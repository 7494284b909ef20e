"""`prism-loadgen answers`: what the orders that policies dispatch do to a real model's answers."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from loadgen.checkout import git_commit
from loadgen.progress import progress
from loadgen.quality.answers_file import AnswersFile
from loadgen.quality.asking import Asker
from loadgen.quality.orders import ORIGINAL, Arm, asked_orders, dispatched, drawn, original
from loadgen.quality.report import Asked, arm_report, as_table
from loadgen.real.engines import running_engine
from loadgen.simulate import SimSpec, UnknownKnee, kept_knee
from loadgen.traces import Trace, make_trace
from loadgen.traces.data import DataMissing
from loadgen.traces.questions import Question, load_questions
from prism_ray.engine.checkpoints.directory import models_dir
from prism_ray.registry import UnknownName

TRACE = "multihop-questions"
POLICIES = ("qas", "prism", "contextpilot")
LOADS = (0.9, 1.2)
PASSAGES = 5
ALL_QUESTIONS = 500
MODEL = "SmolLM2-135M-Instruct"
AGAIN = "original, asked again"
"""The original order once more, its prompt in the cache: what changes here no order changed."""


@click.command("answers")
@click.option("--json", "json_file", type=click.Path(path_type=Path), required=True, metavar="F")
@click.option("--model", help=f"Model directory or Hugging Face id. [default: {MODEL}]")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--questions", type=click.IntRange(1), default=80, show_default=True)
@click.option("--of", type=click.IntRange(1), default=ALL_QUESTIONS, show_default=True,
              help="Questions of the simulated runs; --questions of them are drawn and asked.")  # fmt: skip
@click.option("--passages", type=click.IntRange(1), default=PASSAGES, show_default=True)
@click.option("--policy", "policies", multiple=True, default=POLICIES, show_default=True)
@click.option("--load", "loads", type=float, multiple=True, default=LOADS, show_default=True,
              help="Shares of the knee.")  # fmt: skip
@click.option("--knee", "knee_qps", type=float, help="Requests/s. [default: the kept one]")
@click.option(
    "--profile", default="a800-qwen3-4b", show_default=True, help="Of the simulated runs."
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--output-tokens", type=click.IntRange(1), default=16, show_default=True)
@click.option("--context-length", type=click.IntRange(64), default=4096, show_default=True)
@click.option("--pool-tokens", type=click.IntRange(64), default=16384, show_default=True)
@click.option("--concurrency", type=click.IntRange(1), default=1, show_default=True,
              help="Questions under way; the orders of one are asked one after the other.")  # fmt: skip
@click.option("--body", default="{}", help="More fields of every request, a JSON object.")
def answers(
    json_file: Path, policies: tuple[str, ...], loads: tuple[float, ...], **named: Any
) -> None:
    """Ask a real model the same questions in the orders that policies dispatch under load.

    The orders are simulated; the answers are the model's, at temperature 0, on a real SGLang engine.
    Beside them: the original order, an order by chance, and the original order asked again. A run that
    was stopped, or is told of more questions, policies or loads, goes on where it was.
    """
    try:
        _measure(json_file, policies, loads, named)
    except (DataMissing, UnknownName, UnknownKnee, ValueError) as error:
        raise click.ClickException(str(error)) from None


def _measure(
    json_file: Path, policies: tuple[str, ...], loads: tuple[float, ...], named: dict[str, Any]
) -> None:
    seed, passages = named["seed"], named["passages"]
    questions = load_questions(seed, passages)[: named["of"]]
    options = {} if passages == PASSAGES else {"passages": passages}
    trace = make_trace(TRACE, seed, len(questions), **options)
    spec = SimSpec(
        trace=TRACE,
        seed=seed,
        requests=len(trace.requests),
        profile=named["profile"],
        trace_options=options,
    )
    knee_qps = named["knee_qps"] or kept_knee(TRACE, spec.profile, 1, options)
    model = named["model"] or str(models_dir() / MODEL)
    settings = {
        "model": Path(model).name if Path(model).is_dir() else model,
        "prompts_sha256": trace.prompts_sha256,
        "output_tokens": named["output_tokens"],
        "body": json.loads(named["body"]),
    }
    file = AnswersFile.open(json_file, settings)
    arms = [original(trace), drawn(trace, seed)]
    arms += [dispatched(spec, trace, p, load, knee_qps) for p in policies for load in loads]
    chosen = _chosen(trace, questions, named["questions"], seed)
    asyncio.run(_ask_all(file, arms, chosen, model, named))
    rows = _report(file, arms, chosen, seed)
    report = {
        "git_commit": git_commit(),
        "orders_are": "simulated",
        "answers_are": f"of a real SGLang engine, {named['device']}, temperature 0",
        "profile": spec.profile,
        "knee_qps": knee_qps,
        "seed": seed,
        "notes": list(trace.notes),
        "arms": rows,
    }
    file.save(report)
    click.echo(as_table(rows))


def _chosen(
    trace: Trace, questions: Sequence[Question], count: int, seed: int
) -> list[tuple[str, Question]]:
    """So many of the questions, drawn: those of a run's first seconds met no queue.

    A larger count adds questions and keeps the others.
    """
    pairs = [(r.request_id, q) for r, q in zip(trace.requests, questions, strict=True)]
    rng = random.Random(f"asked-{seed}")
    picked: dict[int, None] = {}
    while len(picked) < min(count, len(pairs)):
        picked[rng.randrange(len(pairs))] = None
    return [pairs[place] for place in picked]


async def _ask_all(
    file: AnswersFile,
    arms: Sequence[Arm],
    chosen: Sequence[tuple[str, Question]],
    model: str,
    named: dict[str, Any],
) -> None:
    """Every order that an arm has for a question, and the original one again; what is there is kept."""
    wanted = {
        question.id: [
            *((question.id, order, False) for order in asked_orders(arms, request_id)),
            (question.id, question_order(arms, request_id), True),
        ]
        for request_id, question in chosen
    }
    missing = {
        key: [one for one in keys if one not in file.replies] for key, keys in wanted.items()
    }
    total = sum(map(len, missing.values()))
    if not total:
        return
    arguments = {
        "context_length": named["context_length"],
        "max_total_tokens": named["pool_tokens"],
        "log_level": "error",
    }
    turns = asyncio.Semaphore(named["concurrency"])
    async with running_engine(model, arguments, {}, cpu=named["device"] == "cpu") as started:
        asker = Asker(
            started.engine,
            model,
            started.info.context_length,
            named["output_tokens"],
            json.loads(named["body"]),
        )
        with progress(total, "answers") as told:

            async def ask(question: Question) -> None:
                async with turns:
                    for key in missing[question.id]:
                        file.replies[key] = await asker.ask(question, key[1])
                        told(1)
                    file.save()

            await asyncio.gather(*(ask(question) for _, question in chosen))


def question_order(arms: Sequence[Arm], request_id: str) -> tuple[int, ...]:
    """The original order of one request."""
    return next(arm.orders[request_id] for arm in arms if arm.name == ORIGINAL)


def _report(
    file: AnswersFile, arms: Sequence[Arm], chosen: Sequence[tuple[str, Question]], seed: int
) -> dict[str, Any]:
    asked = {arm.name: _asked(file, arm, chosen, again=False) for arm in arms}
    native = asked[ORIGINAL]
    asked = {
        ORIGINAL: native,
        AGAIN: _asked(file, next(a for a in arms if a.name == ORIGINAL), chosen, again=True),
        **asked,
    }
    by_name = {arm.name: arm for arm in arms}
    rows: dict[str, Any] = {}
    for name, one in asked.items():
        rows[name] = arm_report(one, native, np.random.default_rng(seed))
        arm = by_name.get(name)
        if arm is not None and arm.policy:
            rows[name] |= {"policy": arm.policy, "load": arm.load, "simulated_qps": arm.qps,
                           "simulated_hit_rate": arm.hit_rate}  # fmt: skip
    return rows


def _asked(
    file: AnswersFile, arm: Arm, chosen: Sequence[tuple[str, Question]], *, again: bool
) -> list[Asked]:
    return [
        Asked(q.id, q.kind, q.answer, arm.orders[request_id],
              file.replies[q.id, arm.orders[request_id], again].text)
        for request_id, q in chosen
    ]  # fmt: skip
