"""Loaders take the public data sets in their own forms, and say what is missing or wrong."""

from __future__ import annotations

import builtins
import json
from collections import Counter

import numpy as np
import pytest

from loadgen.traces import TRACES, loogle, make_trace, programming, videoqa
from loadgen.traces import tokens as token_counts
from loadgen.traces.azure import read_azure
from loadgen.traces.data import DataMissing, from_hub
from loadgen.traces.loogle import read_questions as read_loogle
from loadgen.traces.questions import load_questions
from prism_ray.model import SegmentKind

NEEDS_NO_DATA = {"zipf_hotspot", "loogle"}


@pytest.mark.parametrize("name", [n for n in TRACES if n not in NEEDS_NO_DATA])
def test_a_data_set_that_is_not_here_is_named_with_its_path(name, data) -> None:
    with pytest.raises(DataMissing, match=rf"no data at {data}/.*PRISM_SHARED_DATA"):
        make_trace(name, count=3)


@pytest.mark.parametrize("name", sorted(NEEDS_NO_DATA))
def test_generated_traces_need_no_data(name, data) -> None:
    assert len(make_trace(name, count=3).requests) == 3


def test_retrieval_lists_become_reorderable_passages_of_their_own_length(put) -> None:
    lists = [["a", "b c"], ["b c", "d e f"], ["a", "a"]]
    put("psi-rag-retrieval/multihoprag_keyword.json", {"retrieved_docs": lists, "answers": []})
    trace = make_trace("multihop-rag", seed=1, count=10, system_tokens=7)
    assert trace.text_of is not None
    found = Counter(
        tuple((trace.text_of(s.id), s.tokens) for s in r.skeleton.segments) for r in trace.requests
    )
    lengths = {"a": 1, "b c": 2, "d e f": 3}
    assert found == Counter(tuple((t, lengths[t]) for t in row) for row in lists)
    assert all(s.run == 0 for r in trace.requests for s in r.skeleton.segments)
    assert "3 requests, not 10" in " ".join(trace.notes)
    again = make_trace("multihop-rag", seed=1, count=7, repeat=True)
    assert len(again.requests) == 7
    assert "asked again" in " ".join(again.notes)


def test_retrieval_results_of_another_form_are_refused(put) -> None:
    path = put("psi-rag-retrieval/hotpotqa_keyword.json", {"retrieved_docs": ["text"]})
    with pytest.raises(ValueError, match=f'{path}: expected "retrieved_docs"'):
        make_trace("hotpotqa", count=1)
    path.write_text("{")
    with pytest.raises(ValueError, match=f"{path}: no JSON"):
        make_trace("hotpotqa", count=1)


def test_tool_lists_keep_their_order_and_their_multiplicity(put) -> None:
    rows = [{"id": str(n), "functions": [{"name": "a"}, {"name": f"b{n % 2}"}]} for n in range(4)]
    put("bfcl/live_multiple_tools.jsonl", rows)
    trace = make_trace("toolbench", count=200)
    segments = [r.skeleton.segments for r in trace.requests]
    assert len({s[0].id for s in segments}) == 1
    assert len({s[1].id for s in segments}) == 2
    assert {s.kind for row in segments for s in row} == {SegmentKind.TOOL}
    assert trace.requests[0].skeleton.runs == ()
    moved = make_trace("toolbench", count=2, reorderable=True)
    assert moved.requests[0].skeleton.runs == ((0, 1),)
    put("bfcl/live_multiple_tools.jsonl", [{"id": "x"}])
    with pytest.raises(ValueError, match=':1: expected "functions"'):
        make_trace("toolbench", count=1)


def test_videos_have_a_tokenized_frame_a_second_and_questions_their_choices(put) -> None:
    head = "video,frame_count,width,height,question,answer,qid,type,a0,a1,a2,a3,a4\n"
    body = "7,300,1,1,what is it,0,1,X,a,b,c,d,e\n7,300,1,1,who is it then,0,2,X,a,b,c,d,e\n"
    put("nextqa/test.csv", head + body)
    trace = make_trace("videoqa", count=5)
    assert len(trace.requests) == 2
    assert {r.skeleton.segments[0].tokens for r in trace.requests} == {10 * 257}
    assert {r.skeleton.private_tokens for r in trace.requests} == {24 + 8, 24 + 9}
    put("nextqa/test.csv", "video,question\n1,2\n")
    with pytest.raises(ValueError, match="no NExT-QA"):
        make_trace("videoqa", count=1)


def test_problems_are_asked_several_times_each(put) -> None:
    humaneval = [
        {"prompt": f"def f{n}", "canonical_solution": " pass", "test": "check it"} for n in range(4)
    ]
    put("codegen/HumanEval.jsonl.gz", humaneval)
    path = put("codegen/mbpp-py.jsonl", [{"prompt": "def m", "test": "check m"}])
    assert programming.read_problems(str(path.parent)) == programming.read_problems()
    by_turns = make_trace("programming", count=25, candidates=5, concurrent=1)
    turns = [r.skeleton.segments[0].id for r in by_turns.requests]
    assert all(len(set(turns[n : n + 5])) == 1 for n in range(0, 25, 5))
    assert len(set(turns)) == 5
    trace = make_trace("programming", count=40, candidates=5, concurrent=2)
    asked = Counter(r.skeleton.segments[0].id for r in trace.requests)
    assert len(asked) == 5
    assert sum(asked.values()) == 40
    assert all(4 <= n <= 15 for n in asked.values())
    assert {r.skeleton.segments[0].tokens for r in trace.requests} == {4}


def test_what_the_hub_gives_is_read_in_the_hubs_form(data, monkeypatch) -> None:
    """The hub is not reached here: its rows stand in for it, in the forms that its cards show."""
    choices = {f"a{i}": "x" for i in range(5)}
    rows = {
        "lmms-lab/NExTQA": [{"video": 7, "frame_count": 60, "question": "what is", **choices}],
        "openai/openai_humaneval": [{"prompt": "a b", "canonical_solution": " c", "test": "d"}],
        "google-research-datasets/mbpp": [{"text": "w x y", "test_list": ["z", "z z"]}],
        "bigai-nlco/LooGLE": [{"context": "one two", "question": "who"}],
        "yixuantt/MultiHopRAG": [],
    }
    for module in (videoqa, programming, loogle):
        monkeypatch.setattr(module, "from_hub", lambda dataset, config, split: rows[dataset])
    assert make_trace("videoqa", count=1, hub=True).requests[0].skeleton.prompt_tokens == (
        2 * 257 + 24 + 7
    )
    problems, solved = programming.read_problems(hub=True)
    assert [p.tokens for p in problems] == [3, 6]
    assert [p.tokens for p in solved] == [3]
    trace = make_trace("loogle", count=9, hub=True)
    assert [r.skeleton.prompt_tokens for r in trace.requests] == [3] * 4  # one a configuration


def azure_file(gaps_s: list[float]) -> str:
    at, rows = 10.0, ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for gap in [0.0, *gaps_s]:
        at += gap
        rows.append(f"2023-11-16 18:17:{at:010.7f},100,5")
    return "\n".join(rows) + "\n"


def test_azure_rows_have_times_since_the_first(put) -> None:
    path = put("azure-llm-2023/AzureLLMInferenceTrace_conv.csv", azure_file([0.5, 2.25]))
    assert [r.at_s for r in read_azure("conv")] == pytest.approx([0, 0.5, 2.75])
    bad = put("bad.csv", path.read_text() + "yesterday,1,2\n")
    with pytest.raises(ValueError, match=r"bad\.csv:5: no Azure trace row"):
        read_azure("conv", str(bad))


def test_the_mix_takes_azures_times_and_both_workloads(put) -> None:
    gaps = [0.1 * (1 + n % 5) for n in range(99)]
    put("azure-llm-2023/AzureLLMInferenceTrace_conv.csv", azure_file(gaps[:99]))
    put("bfcl/live_multiple_tools.jsonl", [{"functions": [{"name": "a"}]}])
    head = "video,frame_count,question,a0,a1,a2,a3,a4\n"
    put("nextqa/test.csv", head + "".join(f"{n},90,q,a,b,c,d,e\n" for n in range(200)))
    trace = make_trace("azure-mix", count=60, video_share=0.25)
    kinds = Counter(r.skeleton.segments[0].kind for r in trace.requests)
    assert kinds[SegmentKind.DOCUMENT] == pytest.approx(15, abs=8)
    assert kinds[SegmentKind.DOCUMENT] + kinds[SegmentKind.TOOL] == 60
    found = np.round(np.diff(trace.arrivals("trace")), 4).tolist()
    windows = [np.round(gaps[i : i + 59], 4).tolist() for i in range(len(gaps) - 58)]
    assert found in windows
    with pytest.raises(ValueError, match="no Azure trace 'x'"):
        make_trace("azure-mix", arrivals="x")
    with pytest.raises(ValueError, match="a share lies"):
        make_trace("azure-mix", video_share=2)


def test_mooncake_replays_a_window_and_leaves_out_what_is_too_long(put) -> None:
    rows = [
        {
            "timestamp": 100 * n,
            "input_length": 600 + 512 * (n % 2),
            "output_length": 3,
            "hash_ids": [0, n + 1] + [1000 + n] * (n % 2),
        }
        for n in range(20)
    ]
    put("mooncake/conversation_trace.jsonl", rows)
    trace = make_trace("mooncake", seed=4, count=6)
    assert trace.arrivals("trace") == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5])
    assert {len(r.skeleton.segments) for r in trace.requests} == {1}
    assert {r.skeleton.private_tokens for r in trace.requests} == {88, 600}
    short = make_trace("mooncake", count=20, max_prompt_tokens=1000)
    assert [r.skeleton.prompt_tokens for r in short.requests] == [600] * 10
    put("mooncake/conversation_trace.jsonl", [{"timestamp": 0}])
    with pytest.raises(ValueError, match=":1: lengths"):
        make_trace("mooncake", count=1)


def test_loogle_is_read_in_both_published_forms() -> None:
    rows = [
        {"context": "one two three", "question": "who"},
        {"input": "four five", "qa_pairs": json.dumps([{"Q": "what is it", "A": "x"}] * 2)},
        {"input": "six", "qa_pairs": "none"},
    ]
    questions = read_loogle_words(rows)
    assert [(q.document_tokens, q.tokens) for q in questions] == [(3, 1), (2, 3), (2, 3), (1, 4)]
    assert questions[1].document == questions[2].document
    with pytest.raises(ValueError, match="row 1"):
        read_loogle([{"text": "x"}])


@pytest.fixture(autouse=True)
def _words(data) -> None:
    """All of this file counts words."""


def read_loogle_words(rows):
    return read_loogle(rows)


def questions_files(put) -> None:
    lists = [[f"passage {n} {slot}" for slot in range(5)] for n in range(10)]
    lists[3][0] = lists[4][0] = "Some said: “The fact, of one” and more"
    lists[2][0] = "the fact of one, less often retrieved"
    put("psi-rag-retrieval/multihoprag_keyword.json", {"retrieved_docs": lists})
    asked = [
        {"id": "0", "question": "who", "question_type": "inference_query"},
        {"id": "1", "question": "none", "question_type": "null_query"},
    ]
    facts = [{"fact": "The fact of one."}, {"fact": "a sentence that no passage has"}]
    put("multihop-rag/queries.json", {"queries": asked})
    truth = {
        "0": {"answer": "Ann", "evidence_list": facts},
        "1": {"answer": "Insufficient information.", "evidence_list": []},
    }
    put("multihop-rag/ground_truth.json", truth)
    original = [
        {
            "query": a["question"],
            "question_type": a["question_type"],
            "answer": truth[a["id"]]["answer"],
            "evidence_list": truth[a["id"]]["evidence_list"],
        }
        for a in asked
    ]
    put("MultiHopRAG.json", original)


def test_evidence_is_the_passage_that_holds_the_sentence_else_the_sentence(put, data) -> None:
    questions_files(put)
    by_id = {q.id: q for q in load_questions(seed=2)}
    evidence = {p.text for p in by_id["0"].evidence}
    assert evidence == {
        "Some said: “The fact, of one” and more",
        "a sentence that no passage has",
    }
    assert len(by_id["0"].distractors) == 3
    assert by_id["1"].evidence == ()
    assert len({p.text for p in by_id["1"].passages}) == 5
    assert {q.id: q for q in load_questions(seed=2)} == by_id
    assert load_questions(seed=2, path=str(data / "MultiHopRAG.json")) == list(by_id.values())
    many = load_questions(seed=2, passages=40)
    assert all(len({p.text for p in q.passages}) == 40 for q in many)
    (with_evidence,) = (q for q in many if q.evidence)
    assert not any("less often" in p.text for p in with_evidence.distractors)
    (null,) = load_questions(seed=2, kinds=["null_query"])
    assert null == by_id["1"]
    with pytest.raises(ValueError, match="no questions of kind"):
        load_questions(kinds=["x"])


def test_the_trace_of_questions_has_every_text(put) -> None:
    questions_files(put)
    trace = make_trace("multihop-questions", count=2)
    assert trace.text_of is not None
    for request in trace.requests:
        for atom in request.prompt():
            text = trace.text_of(atom.id)
            assert text is not None
            assert len(text.split()) == atom.tokens


def test_counts_are_kept_and_follow_the_texts_and_the_tokenizer(data, monkeypatch) -> None:
    assert token_counts.count_tokens(["a b", "c"]) == [2, 1]
    kept = list((token_counts.cache_dir() / "token-counts").iterdir())
    assert len(kept) == 1
    monkeypatch.setattr(token_counts, "encode", lambda texts: pytest.fail("counted again"))
    assert token_counts.count_tokens(["a b", "c"]) == [2, 1]
    monkeypatch.undo()


def test_texts_that_only_join_to_the_same_are_not_confused(data) -> None:
    assert token_counts.count_tokens(["ab c", "d"]) == [2, 1]
    assert token_counts.count_tokens(["ab", " cd"]) == [1, 1]


def test_the_seed_decides_the_order_of_lists(put) -> None:
    lists = [[f"p{n}"] for n in range(30)]
    put("psi-rag-retrieval/2wikimultihopqa_keyword.json", {"retrieved_docs": lists})
    one, again, other = (make_trace("2wiki", seed=s, count=30) for s in (1, 1, 2))
    assert one.prompts_sha256 == again.prompts_sha256 != other.prompts_sha256
    orders = [[r.skeleton.segments[0].id for r in t.requests] for t in (one, other)]
    assert orders[0] != orders[1]
    assert set(orders[0]) == set(orders[1])


def test_other_texts_another_tokenizer_or_a_broken_file_are_counted_anew(data) -> None:
    assert token_counts.count_tokens(["a b"]) == [2]
    assert token_counts.count_tokens(["a", "b"]) == [1, 1]
    (kept, _) = sorted((token_counts.cache_dir() / "token-counts").iterdir())
    for file in (token_counts.cache_dir() / "token-counts").iterdir():
        file.write_bytes(b"broken")
    assert token_counts.count_tokens(["a b"]) == [2]
    kept.parent.chmod(0o700)


def test_the_hub_says_what_it_needs(monkeypatch) -> None:
    real_import = builtins.__import__

    def without_datasets(name, *args, **kwargs):
        if name == "datasets":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_datasets)
    with pytest.raises(DataMissing, match="install `datasets`"):
        from_hub("some/set", None, "train")
