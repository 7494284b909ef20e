"""Every turn's prompt begins with the whole of the last one and what was generated then."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from loadgen.traces import Trace, make_trace
from loadgen.traces.agents import interleave, recorded_sessions
from loadgen.traces.conversation import Conversation
from prism_ray.model import Segment, SegmentKind

POLICY = "be kind to all"


def said(role: str, content: str | None, **more: object) -> dict:
    return {"role": role, "content": content, **more}


def run(task: int, answers: int, length: int = 5) -> dict:
    messages = [said("system", POLICY)]
    for n in range(answers):
        messages.append(said("user", f"question {task} {n}"))
        if n % 2:
            call = {"function": {"name": "look", "arguments": '{"at": 1}'}}
            messages.append(said("assistant", None, tool_calls=[call]))
            messages.append(said("tool", "the same record for everybody"))
        messages.append(said("assistant", " ".join(f"a{task}.{n}.{i}" for i in range(length))))
    return {"task_id": task, "trial": 0, "traj": messages}


@pytest.fixture
def runs(put) -> list[dict]:
    value = [run(task, 3 + task % 3, length=3 + 10 * (task % 2)) for task in range(12)]
    put("tau-bench/historical_trajectories/gpt-4o-airline.json", value)
    tools = {"airline": {"tools": [{"name": "look"}]}}
    put("tau2-bench/web/leaderboard/public/task-data/tools-data.json", tools)
    return value


def assert_turns_continue(trace: Trace) -> int:
    """Checks every session; returns how many turns follow another."""
    before: dict[str, tuple] = {}
    followed = 0
    for request in trace.requests:
        prompt = request.prompt()
        if request.session in before:
            last = before[request.session]
            assert prompt[: len(last)] == last
            assert len(prompt) > len(last)
            followed += 1
        before[request.session] = (*prompt, *request.output)
    return followed


@pytest.mark.parametrize("output_tokens", [1, 4, None])
def test_a_turn_continues_the_last_ones_prompt_and_output(runs, output_tokens) -> None:
    trace = make_trace("agent_prefix", count=1000, output_tokens=output_tokens, concurrent=4)
    assert len(trace.requests) == sum(m["role"] == "assistant" for r in runs for m in r["traj"])
    assert assert_turns_continue(trace) == len(trace.requests) - len(runs)
    assert all(r.skeleton.runs == () for r in trace.requests)
    longest = max(r.output_tokens for r in trace.requests)
    assert longest == (output_tokens or 14)


def test_a_budget_changes_what_is_generated_and_no_prompts_length(runs) -> None:
    short = make_trace("agent_prefix", count=50, output_tokens=2)
    whole = make_trace("agent_prefix", count=50, output_tokens=None)
    assert [r.skeleton.prompt_tokens for r in short.requests] == [
        r.skeleton.prompt_tokens for r in whole.requests
    ]
    assert {r.output_tokens for r in short.requests} == {2}


def test_answers_that_are_not_continued_are_new_tokens(runs) -> None:
    trace = make_trace("agent_prefix", count=50, continued=False)
    assert all(r.output == () for r in trace.requests)
    with_names = make_trace("agent_prefix", count=50)
    assert [r.skeleton.prompt_tokens for r in trace.requests] == [
        r.skeleton.prompt_tokens for r in with_names.requests
    ]


def test_messages_have_the_lengths_of_the_template(runs) -> None:
    """Words and marks are one token each here: a header is 2, an end joins the last word."""
    name, turns = recorded_sessions()[0]
    assert name == "task 0 trial 0"
    first = turns[0]
    assert [(gap.tokens, segment.tokens) for gap, segment in first.pieces] == [(2, 4)]
    assert first.header.tokens == 2
    assert first.answer_tokens == 3 + 1
    assert first.system is not None
    assert first.system.tokens == 1 + 1 + len(POLICY.split()) + 2 + 6 + 2 + 2 + 1 + 1


def test_the_same_tool_output_is_the_same_segment_in_every_run(runs) -> None:
    trace = make_trace("agent_prefix", count=1000)
    tools = {
        s.id for r in trace.requests for s in r.skeleton.segments if s.kind is SegmentKind.TOOL
    }
    assert len(tools) == 1


def test_so_many_conversations_are_under_way_and_each_keeps_its_order() -> None:
    def turns(name: str, count: int):
        conversation = Conversation(Segment(b"s", 1, SegmentKind.SYSTEM))
        return [conversation.answer((b"h", 1), f"{name}{n}".encode(), 10) for n in range(count)]

    sessions = [(f"s{n}", turns(f"s{n}", 5)) for n in range(20)]
    came = list(interleave(random.Random(3), sessions, 4, max_prompt_tokens=10_000))
    assert len(came) == 100
    places = defaultdict(list)
    for place, (name, turn) in enumerate(came):
        places[name].append((place, turn))
    for name, rows in places.items():
        assert [t for _, t in rows] == dict(sessions)[name]
    under_way = [
        sum(rows[0][0] <= place <= rows[-1][0] for rows in places.values()) for place in range(100)
    ]
    assert max(under_way) == 4
    short = list(interleave(random.Random(3), sessions, 4, max_prompt_tokens=30))
    assert len(short) == 20 * 3


def test_a_file_of_another_form_is_refused(put) -> None:
    put("tau-bench/historical_trajectories/gpt-4o-airline.json", {"runs": []})
    with pytest.raises(ValueError, match='list of runs with a "traj"'):
        make_trace("agent_prefix", count=3)


@pytest.fixture
def banking(put) -> None:
    root = "tau2-bench/banking_knowledge"
    for n in range(6):
        text = " ".join(["word"] * (10 + n))
        put(f"{root}/documents/d{n}.json", {"id": f"d{n}", "title": "t", "content": text})
    tasks = [{"id": f"t{n}", "required_documents": [f"d{n}", f"d{n + 1}"]} for n in range(5)]
    put(f"{root}/tasks.json", [*tasks, {"id": "none", "required_documents": []}])
    for name in ("policy_header", "additional_instructions"):
        put(f"{root}/prompts/components/{name}.md", "be careful")


def test_banking_tasks_collect_their_documents_turn_by_turn(banking) -> None:
    trace = make_trace("agent_prefix", count=90, source="tau2-banking", concurrent=3)
    assert len(trace.requests) == 90
    assert assert_turns_continue(trace) > 50
    documents = [
        [s for s in r.skeleton.segments if s.kind is SegmentKind.DOCUMENT] for r in trace.requests
    ]
    assert {len(d) for d in documents} == {0, 1, 2}
    assert {s.tokens for d in documents for s in d} == {11 + n for n in range(6)}
    assert len({s.id for d in documents for s in d}) == 6


def test_prompts_that_never_fit_are_an_error_not_an_endless_search(banking) -> None:
    with pytest.raises(ValueError, match="no prompt fits into 3 tokens"):
        make_trace("agent_prefix", count=1, source="tau2-banking", max_prompt_tokens=3)


def test_banking_tasks_ask_once_where_documents_may_move(banking) -> None:
    trace = make_trace("agent_prefix", count=40, source="tau2-banking", reorderable=True)
    assert len({r.session for r in trace.requests}) == 40
    assert all(r.skeleton.runs == ((0, 1),) for r in trace.requests)


def test_options_that_do_not_go_together_are_refused(runs) -> None:
    for options, message in [
        ({"source": "x"}, "no source 'x'"),
        ({"reorderable": True}, "recorded turns may not move"),
        ({"concurrent": 0}, "cannot be under way"),
        ({"output_tokens": 0}, "at least one token"),
    ]:
        with pytest.raises(ValueError, match=message):
            make_trace("agent_prefix", count=3, **options)


def test_a_households_steps_continue_each_other(put) -> None:
    demo = "You see a drawer.\nYour task is to: look.\n> go to drawer 1\nIt is open.\n> look\nOK."
    tasks = ("put", "clean", "heat", "cool", "examine", "puttwo")
    put("alfworld/alfworld_3prompts.json", {f"react_{t}_{n}": demo for t in tasks for n in (0, 1)})
    trace = make_trace("embodied", count=150, concurrent=3)
    assert assert_turns_continue(trace) > 100
    lengths = {s.tokens for r in trace.requests for s in r.skeleton.segments}
    assert lengths == {9, 4, 3, 1}  # the sight, two actions, what is seen after each
    put("alfworld/alfworld_3prompts.json", {})
    with pytest.raises(ValueError, match="no demonstration 'react_put_1'"):
        make_trace("embodied", count=1)
