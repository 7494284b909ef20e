"""A RAG client of prism_ray: asks questions over retrieved passages and shows what their reuse saved.

    serve run prism_ray.app                  # in one terminal
    pip install "prism-ray[loadgen]"         # in another
    python examples/rag.py                   # 100 requests in about 7 minutes

Each request has a system prompt, five passages that are marked reorderable, and a question. It goes
through the plain `openai` client; only the passages' `prism` key and `extra_body` are prism_ray's.

Passages. Where the public data lies beside the project (`../shared/data`, or `PRISM_SHARED_DATA`),
they are the top-5 lists of a real retrieval run on MultiHop-RAG, whole (3-94 words, about 100
tokens, `--passage-words` cuts them). That run has no questions, so each list is paired here with a
question of MultiHop-RAG: real texts, but our pairing, so the answers mean nothing. In all 1,000
lists few passages repeat within any 100 requests; `--sharing 0.3` keeps the 30% of the lists whose
passages recur most, `--sharing 1` keeps all. Without the data, passages are made from a word list.

Speed. On a CPU SmolLM2-135M prefills about 350 tokens/s and decodes about 10: a prompt of some 650
tokens is two seconds of work when nothing is cached. Hence the default rate of 0.25 requests/s and
8 output tokens. On a GPU try `--rate 20 --requests 1000`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError, AsyncOpenAI

from loadgen.arrivals import poisson
from loadgen.bounds import Prompt, bounds_beside, bounds_in_words
from loadgen.metrics import summarize, table
from loadgen.rows import Outcome, RequestRow
from prism_ray.model import Atom

SYSTEM = (
    "You answer questions about the news. Use only the passages that you are given. "
    "If they do not hold the answer, say that there is not enough information. "
    "Answer with a name, a date, yes or no, and nothing else."
)
PASSAGES_PER_REQUEST = 5


@dataclass(frozen=True)
class Passage:
    """A retrieved text; ``label`` is our name for it, which the server's report uses."""

    label: str
    text: str


@dataclass(frozen=True)
class Question:
    text: str
    passages: tuple[Passage, ...]

    @property
    def messages(self) -> Any:
        """The chat messages: passages as content parts that the server may reorder (the key that
        says so is not in openai's types, hence Any)."""
        parts: list[dict[str, Any]] = [
            {
                "type": "text",
                "text": passage.text,
                "prism": {"segment": passage.label, "reorderable": True},
            }
            for passage in self.passages
        ]
        parts.append({"type": "text", "text": f"Question: {self.text}"})
        return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": parts}]


def load_questions(data: Path, count: int, sharing: float, words: int, seed: int) -> list[Question]:
    """Real retrieval lists, each paired with a question that was not asked of it."""
    run = json.loads((data / "psi-rag-retrieval/multihoprag_keyword.json").read_text())
    lists = [[cut(text, words) for text in texts] for texts in run["retrieved_docs"]]
    asked = json.loads((data / "multihop-rag/queries.json").read_text())["queries"]
    seen = Counter(text for texts in lists for text in set(texts))
    labels = {text: f"mhr-{number:04d}" for number, text in enumerate(seen)}
    by_sharing = sorted(range(len(lists)), key=lambda i: -sum(seen[t] for t in lists[i]))
    kept = by_sharing[: max(1, round(sharing * len(lists)))]
    rng = random.Random(seed)
    rng.shuffle(kept)
    rng.shuffle(asked)
    questions = []
    for index, question, _ in zip(cycle(kept), cycle(asked), range(count), strict=False):
        texts = dict.fromkeys(lists[index])
        passages = tuple(Passage(labels[text], text) for text in texts)
        questions.append(Question(question["question"], passages))
    return questions


def make_questions(count: int, words: int, seed: int) -> list[Question]:
    """Questions over a corpus made here: 60 passages, of which 8 hot ones get 70% of the places."""
    rng = random.Random(seed)
    subjects = [
        "The council",
        "A refinery",
        "The museum",
        "Her company",
        "The minister",
        "An old mill",
    ]
    verbs = ["announced", "delayed", "bought", "criticised", "rebuilt", "forgot"]
    objects = ["the new bridge", "a second harbour", "its annual report", "the northern railway"]
    times = ["on Monday", "after the vote", "in early spring", "despite the storm", "last year"]

    def sentence() -> str:
        return " ".join(rng.choice(c) for c in (subjects, verbs, objects, times)) + "."

    corpus = [
        Passage(
            f"made-{i:02d}", cut(f"Report {i}. " + " ".join(sentence() for _ in range(8)), words)
        )
        for i in range(60)
    ]
    questions = []
    for _ in range(count):
        chosen: dict[Passage, None] = {}
        while len(chosen) < PASSAGES_PER_REQUEST:
            chosen[rng.choice(corpus[:8] if rng.random() < 0.7 else corpus)] = None
        what = rng.choice(objects)
        questions.append(Question(f"Who {rng.choice(verbs)} {what}, and when?", tuple(chosen)))
    return questions


def cut(text: str, words: int) -> str:
    """The first ``words`` words; 0 keeps all."""
    return " ".join(text.split()[:words]) if words else text


async def ask(
    client: AsyncOpenAI,
    model: str,
    question: Question,
    row: RequestRow,
    start_s: float,
    tokens: int,
) -> None:
    """Ask one question, streamed, and note in ``row`` what came when."""
    row.sent_s = time.monotonic() - start_s
    try:
        stream = await client.chat.completions.create(
            model=model,
            messages=question.messages,
            max_tokens=tokens,
            temperature=0.0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"prism": {"report": True}},
        )
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                row.chunk_s.append(time.monotonic() - start_s)
                row.text += chunk.choices[0].delta.content
            if chunk.usage is not None:
                row.prompt_tokens = chunk.usage.prompt_tokens
                row.output_tokens = chunk.usage.completion_tokens
                details = chunk.usage.prompt_tokens_details
                row.cached_tokens = details.cached_tokens if details else None
            if report := (chunk.model_extra or {}).get("prism"):
                row.prism = report
                row.lane, row.replica = report.get("lane"), report.get("replica")
        row.outcome = Outcome.ANSWERED
    except APIStatusError as error:
        row.outcome, row.status, row.error_code = Outcome.REFUSED, error.status_code, error.code
        row.error_message = error.message
    except APITimeoutError as error:
        row.outcome, row.error_message = Outcome.TIMEOUT, str(error)
    except APIConnectionError as error:
        row.outcome, row.error_message = Outcome.CONNECTION, str(error)
    except APIError as error:  # an error event in the stream
        row.outcome, row.error_code = Outcome.STREAM_ERROR, error.code
        row.error_message = error.message
    except httpx.HTTPError as error:
        row.outcome, row.error_message = Outcome.TRUNCATED, str(error)
    row.ended_s = time.monotonic() - start_s


async def ask_all(
    client: AsyncOpenAI, model: str, questions: Sequence[Question], args: argparse.Namespace
) -> list[RequestRow]:
    """Open loop: every question is asked at its Poisson time, however busy the server is."""
    times = poisson(len(questions), args.rate, np.random.default_rng(args.seed))
    rows = [RequestRow(id=str(i), scheduled_s=t) for i, t in enumerate(times)]
    start_s = time.monotonic()
    done = 0

    async def one(question: Question, row: RequestRow) -> None:
        nonlocal done
        await ask(client, model, question, row, start_s, args.max_tokens)
        done += 1
        if done % 10 == 0 or not row.answered:
            said = "" if row.answered else f", {row.outcome}: {row.error_message}"
            print(f"  {done}/{len(rows)} at {row.ended_s:.0f} s{said}", flush=True)

    async with asyncio.TaskGroup() as group:
        for question, row in zip(questions, rows, strict=True):
            await asyncio.sleep(max(0.0, start_s + row.scheduled_s - time.monotonic()))
            group.create_task(one(question, row))
    return rows


async def ask_again(
    client: AsyncOpenAI, model: str, questions: Sequence[Question], args: argparse.Namespace
) -> bool:
    """Ask the question with the hottest passages, then another one about the same passages.

    The second names the passages in the opposite order, and still finds them in the cache.
    """
    uses = Counter(p for q in questions for p in q.passages)
    hot = max(questions, key=lambda q: sum(uses[p] for p in q.passages) / len(q.passages))
    other = next(q for q in (*questions, hot) if q.text != hot.text or len(questions) == 1)
    turned = replace(hot, text=other.text, passages=hot.passages[::-1])
    print("\nHot passages: " + ", ".join(f"{p.label} (x{uses[p]})" for p in hot.passages))
    for what, question in (("first asked", hot), ("asked again, passages reversed", turned)):
        row = RequestRow(id=what, scheduled_s=0.0)
        await ask(client, model, question, row, time.monotonic(), args.max_tokens)
        print(f"{what}: {question.text}")
        if not row.answered:
            print(f"  failed: {row.outcome} {row.error_message}")
            return False
        report = row.prism or {}
        print(f"  as sent:           {', '.join(p.label for p in question.passages)}")
        print(f"  as the model read: {', '.join(map(str, report.get('order', [])))}")
        print(
            f"  cached: {row.cached_tokens} of {row.prompt_tokens} prompt tokens"
            f" (predicted {report.get('cached_tokens_predicted')})"
        )
        terms = report.get("ttft") or {}
        print("  TTFT at the server: " + ", ".join(f"{k} {v:.3f}" for k, v in terms.items()))
    return True


def bounds_of(questions: Sequence[Question]) -> dict[str, float | None]:
    """What a cache could save at most, as shares of words: a client knows no tokens of single passages."""

    def words(text: str) -> Atom:
        return Atom(text.encode(), len(text.split()))

    prompts = [
        Prompt((words(SYSTEM), *(words(p.text) for p in q.passages), words(f"Question: {q.text}")))
        for q in questions
    ]
    return bounds_beside(prompts, movable=True)


def choose_questions(args: argparse.Namespace) -> list[Question]:
    """Real ones if the data is there, made ones otherwise; says which."""
    beside = Path(__file__).resolve().parents[2] / "shared/data"
    data = Path(os.environ.get("PRISM_SHARED_DATA", beside))
    if not data.joinpath("psi-rag-retrieval").is_dir():
        print("Passages: made from a word list (no public data found), 70% from 8 hot ones.")
        return make_questions(args.requests, args.passage_words, args.seed)
    print(
        f"Passages: real top-5 lists of a retrieval run on MultiHop-RAG, the {args.sharing:.0%} that "
        "share most.\nThe run has no questions: each list is paired with a MultiHop-RAG question by "
        "us, and so are the arrival times;\nthe answers are not to be judged."
    )
    return load_questions(data, args.requests, args.sharing, args.passage_words, args.seed)


async def main(args: argparse.Namespace) -> int:
    questions = choose_questions(args)
    distinct = len({p for q in questions for p in q.passages})
    print(
        f"{len(questions)} questions over {distinct} distinct passages, Poisson arrivals at "
        f"{args.rate}/s: about {len(questions) / args.rate / 60:.1f} minutes."
    )
    # no retries: a failure here should be seen, and a retry would not be open loop
    async with AsyncOpenAI(
        base_url=args.base_url,
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
        max_retries=0,
        timeout=args.timeout_s,
    ) as client:
        try:
            model = args.model or (await client.models.list()).data[0].id
        except APIError as error:
            print(f"No server at {args.base_url} ({error}). Start one: serve run prism_ray.app")
            return 2
        rows = await ask_all(client, model, questions, args)
        failed = sum(not r.answered for r in rows)
        print(f"\n{len(rows) - failed} answered, {failed} failed by {model}\n")
        print(table(summarize(rows)))
        print(f"\nhit rate at most (by words): {bounds_in_words(bounds_of(questions))}")
        print(
            "B0: passages as asked, endless cache; B1: any order of passages. The server reorders."
        )
        again = await ask_again(client, model, questions, args)
    return 0 if again and not failed else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--rate", type=float, default=0.25, help="requests a second")
    parser.add_argument("--max-tokens", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sharing", type=float, default=0.3, help="share of the lists kept")
    parser.add_argument("--passage-words", type=int, default=0, help="cut passages; 0: whole")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", help="default: the first that the server lists")
    parser.add_argument("--timeout-s", type=float, default=600.0)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parse())))
