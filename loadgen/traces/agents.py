"""``agent_prefix``: agent conversations turn by turn, every turn one request; nothing may move.

Recorded τ-bench runs give the messages; when the turns of different runs come is ours.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.traces.banking import banking_sessions
from loadgen.traces.base import TRACES, Trace, TraceRequest, digest
from loadgen.traces.conversation import Conversation, Turn
from loadgen.traces.data import data_path, read_json
from loadgen.traces.tokens import count_tokens
from prism_ray.model import Segment, SegmentKind

RUNS = "tau-bench/historical_trajectories/gpt-4o-airline.json"
TOOLS = "tau2-bench/web/leaderboard/public/task-data/tools-data.json"
SOURCES = ("tau-bench", "tau2-banking")
END = "<|im_end|>"


@dataclass(frozen=True, slots=True)
class _Message:
    """What the agent wrote (``by_agent``) or got; ``text`` ends the message as the template does."""

    header: str
    text: str
    by_agent: bool
    kind: SegmentKind


@TRACES.register("agent_prefix")
def agent_prefix(
    *,
    seed: int,
    count: int,
    source: str = "tau-bench",
    output_tokens: int | None = 32,
    max_prompt_tokens: int = 40_960,
    concurrent: int = 64,
    continued: bool = True,
    reorderable: bool = False,
    path: str | None = None,
) -> Trace:
    """The paper's AgentPrefix (§4.6): policy and tools first, then all earlier turns.

    ``output_tokens`` cuts answers (None: as recorded); the next prompt has the recorded answer whole,
    and with ``continued`` what was generated is the beginning of it. ``concurrent`` conversations are
    under way at a time, and whose turn comes next is drawn. ``source`` "tau2-banking": tasks that
    collect shared documents turn by turn, or with ``reorderable`` ask once with all of them, which
    may then trade places.
    """
    if concurrent < 1:
        raise ValueError(f"{concurrent} conversations cannot be under way")
    if output_tokens is not None and output_tokens < 1:
        raise ValueError(f"an answer has at least one token, not {output_tokens}")
    rng = random.Random(f"agent-{source}-{seed}")
    sessions, note = _sessions(rng, source, reorderable, path)
    notes = [note, f"which of {concurrent} conversations comes next is drawn by seed"]
    turns = interleave(rng, sessions, concurrent, max_prompt_tokens)
    requests: list[TraceRequest] = []
    for session, turn in turns:
        if len(requests) == count:
            break
        requests.append(turn.request(f"r{len(requests)}", session, output_tokens, continued))
    if output_tokens is not None:
        how = "the beginning of" if continued else "not"
        notes.append(
            f"answers end after {output_tokens} tokens and count as {how} the recorded ones"
        )
    if len(requests) < count:
        notes.append(f"the recorded runs have {len(requests)} turns, not {count}")
    options = {
        "source": source,
        "output_tokens": output_tokens,
        "max_prompt_tokens": max_prompt_tokens,
        "concurrent": concurrent,
        "continued": continued,
        "reorderable": reorderable,
        "path": path,
    }
    return Trace("agent_prefix", seed, options, tuple(requests), tuple(notes))


def _sessions(
    rng: random.Random, source: str, reorderable: bool, path: str | None
) -> tuple[Iterable[tuple[str, Sequence[Turn]]], str]:
    """(name, turns) of each conversation in a drawn order, and what is to be said of their source."""
    if source == "tau2-banking":
        return banking_sessions(rng, reorderable, path), (
            "documents, which task needs which, and the policy are τ²-bench's (banking_knowledge); "
            "the order in which a task collects them and all other messages are generated"
        )
    if source != "tau-bench":
        raise ValueError(f"no source {source!r}; there are {', '.join(SOURCES)}")
    if reorderable:
        raise ValueError("recorded turns may not move; reorderable is for tau2-banking")
    recorded = recorded_sessions(path)
    return rng.sample(recorded, len(recorded)), (
        f"messages are those of {len(recorded)} recorded τ-bench airline runs, rendered as Qwen3's "
        "template does (lengths within a token a message); the policy is τ-bench's, the tool "
        "schemas are τ²-bench's for the same domain"
    )


def interleave(
    rng: random.Random,
    sessions: Iterable[tuple[str, Sequence[Turn]]],
    concurrent: int,
    max_prompt_tokens: int,
) -> Iterator[tuple[str, Turn]]:
    """Turns of ``concurrent`` sessions at a time, each session's in its own order.

    A session ends before the first prompt that is too long. ValueError when a thousand sessions in
    a row had no prompt that fits: there may be no end of them.
    """
    waiting = iter(sessions)
    barren = 0
    active: list[tuple[str, Iterator[Turn]]] = []
    while True:
        while len(active) < concurrent:
            fresh = next(waiting, None)
            if fresh is None:
                break
            active.append((fresh[0], iter(fresh[1])))
        if not active:
            return
        chosen = rng.randrange(len(active))
        name, turns = active[chosen]
        turn = next(turns, None)
        if turn is None or turn.prompt_tokens > max_prompt_tokens:
            del active[chosen]
            barren += 1
            if barren == 1000:
                raise ValueError(f"no prompt fits into {max_prompt_tokens} tokens")
        else:
            barren = 0
            yield name, turn


def recorded_sessions(path: str | None = None) -> list[tuple[str, list[Turn]]]:
    """Every recorded run as (name, its turns); ``path`` is a file of τ-bench trajectories.

    Raises DataMissing, or ValueError for a file of another form.
    """
    found = data_path(RUNS, path)
    runs = read_json(found)
    if not isinstance(runs, list) or not all(
        isinstance(run, dict) and isinstance(run.get("traj"), list) and run["traj"] for run in runs
    ):
        raise ValueError(f'{found}: expected a list of runs with a "traj" each')
    try:
        messages = [[_message(m) for m in run["traj"][1:]] for run in runs]
        policies = [str(run["traj"][0]["content"]) for run in runs]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{found}: a message without {error}") from error
    tools = _tools()
    systems = list(dict.fromkeys(_system(policy, tools) for policy in policies))
    texts = list(dict.fromkeys(t for run in messages for m in run for t in (m.header, m.text)))
    counts = dict(zip([*systems, *texts], count_tokens([*systems, *texts]), strict=True))
    sessions: list[tuple[str, list[Turn]]] = []
    for run, policy, said in zip(runs, policies, messages, strict=True):
        text = _system(policy, tools)
        system = Segment(digest("text", text), counts[text], SegmentKind.SYSTEM)
        name = f"task {run.get('task_id')} trial {run.get('trial')}"
        sessions.append((name, list(_turns(system, said, counts))))
    return sessions


def _turns(system: Segment, messages: Sequence[_Message], counts: dict[str, int]) -> Iterator[Turn]:
    conversation = Conversation(system)
    for message in messages:
        header = (digest("text", message.header), counts[message.header])
        if message.by_agent:
            yield conversation.answer(header, digest("text", message.text), counts[message.text])
        else:
            conversation.add(
                header, digest("text", message.text), counts[message.text], message.kind
            )


def _message(message: dict[str, Any]) -> _Message:
    role, content = message["role"], message.get("content") or ""
    if role == "tool":
        return _Message(
            "\n<|im_start|>user\n<tool_response>\n",
            f"{content}\n</tool_response>{END}",
            False,
            SegmentKind.TOOL,
        )
    for call in message.get("tool_calls") or ():
        function = call["function"]
        body = f'{{"name": "{function["name"]}", "arguments": {function["arguments"]}}}'
        content += f"{chr(10) if content else ''}<tool_call>\n{body}\n</tool_call>"
    return _Message(f"\n<|im_start|>{role}\n", content + END, role == "assistant", SegmentKind.TURN)


def _tools() -> list[str]:
    value = read_json(data_path(TOOLS))
    return [json.dumps(tool) for tool in value["airline"]["tools"]]


def _system(policy: str, tools: Sequence[str]) -> str:
    schemas = "\n".join(tools)
    return (
        f"<|im_start|>system\n{policy}\n\n# Tools\n\nCall functions as JSON in tool_call tags.\n"
        f"<tools>\n{schemas}\n</tools>{END}"
    )
