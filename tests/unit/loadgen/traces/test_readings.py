"""Each reading of the paper's trace puts that many hot passages into a hot request."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest

from loadgen.traces import make_trace
from loadgen.traces.zipf_hotspot import ZipfHotspot, prompt_tokens


def hot_slots(reading: str, count: int = 6000, seed: int = 5) -> Counter[int]:
    skeletons = list(islice(ZipfHotspot(seed, reading=reading).skeletons(), count))
    # The hot set is the first thing that the seed draws: Zipf's tail may be as rare as cold passages.
    import random

    hot = {f"passage-{i}" for i in random.Random(seed).sample(range(981), 20)}
    return Counter(sum(s.label in hot for s in k.segments) for k in skeletons)


@pytest.mark.parametrize(("reading", "slots"), [("a", 1), ("2", 2), ("3", 3), ("d", 5)])
def test_a_fixed_reading_has_that_many_hot_passages_in_seven_of_ten(
    reading: str, slots: int
) -> None:
    found = hot_slots(reading)
    assert set(found) == {0, slots}
    assert found[slots] / 6000 == pytest.approx(0.7, abs=0.02)


def test_reading_c_has_one_to_five_hot_passages_equally_often() -> None:
    found = hot_slots("c")
    assert found[0] / 6000 == pytest.approx(0.3, abs=0.02)
    assert all(found[n] / 6000 == pytest.approx(0.14, abs=0.015) for n in range(1, 6))


def test_reading_b_draws_slots_one_by_one_and_keeps_the_rate_of_hot_requests() -> None:
    found = hot_slots("b")
    slot = 1 - 0.3**0.2
    assert found[0] / 6000 == pytest.approx(0.3, abs=0.02)
    assert found[1] / 6000 == pytest.approx(5 * slot * (1 - slot) ** 4, abs=0.02)
    assert found[2] / 6000 == pytest.approx(10 * slot**2 * (1 - slot) ** 3, abs=0.02)


def test_reading_e_asks_real_lists_in_their_own_order(put) -> None:
    lists = [[f"p{n} {slot}" for slot in range(4)] + ["hot text"] for n in range(30)]
    lists += [[f"c{n} {slot}" for slot in range(5)] for n in range(30)]
    put("psi-rag-retrieval/multihoprag_keyword.json", {"retrieved_docs": lists})
    trace = make_trace("zipf_hotspot", seed=1, count=400, reading="e", hot_passages=1)
    assert trace.text_of is not None
    asked = [tuple(trace.text_of(s.id) for s in r.skeleton.segments) for r in trace.requests]
    assert set(asked) <= {tuple(row) for row in lists}
    assert sum(row[-1] == "hot text" for row in asked) / 400 == pytest.approx(0.7, abs=0.07)
    assert {s.tokens for r in trace.requests for s in r.skeleton.segments} == {128}


@pytest.mark.parametrize(("slots", "tokens"), [(3, 768), (5, 1029), (8, 1430)])
@pytest.mark.parametrize("system_tokens", [60, 214, 294])
def test_prompts_have_the_published_length_whatever_the_prefix(
    slots: int, tokens: int, system_tokens: int
) -> None:
    trace = make_trace("zipf_hotspot", count=3, slots=slots, system_tokens=system_tokens)
    assert {r.skeleton.prompt_tokens for r in trace.requests} == {tokens}


def test_prompt_lengths_between_the_published_ones_lie_between_them() -> None:
    assert [prompt_tokens(k) for k in range(3, 9)] == sorted(prompt_tokens(k) for k in range(3, 9))
    assert prompt_tokens(5, 64) == 1029 - 5 * 64


def test_ids_and_lengths_need_no_data_and_texts_do(data, monkeypatch) -> None:
    trace = make_trace("zipf_hotspot", count=5)
    monkeypatch.delenv("PRISM_SHARED_DATA")
    assert trace.prompts_sha256 == make_trace("zipf_hotspot", count=5).prompts_sha256


def test_texts_are_cut_or_padded_to_the_passages_length(put) -> None:
    words = [" ".join(f"w{n}" for n in range(length)) for length in (3, 128, 200, 127)]
    put("psi-rag-retrieval/multihoprag_keyword.json", {"retrieved_docs": [words]})
    from loadgen.traces.passages import fit_text

    # A tokenizer of unknown words decodes to unknown words; the count is what matters here.
    assert [len(fit_text(text, 128).split()) for text in words] == [128] * 4


def test_real_passages_of_the_papers_trace_are_exactly_128_tokens_long(real_data) -> None:
    from loadgen.traces.tokens import count_tokens

    trace = make_trace("zipf_hotspot", count=20)
    assert trace.text_of is not None
    texts = [trace.text_of(s.id) for r in trace.requests for s in r.skeleton.segments]
    assert all(text is not None for text in texts)
    assert set(count_tokens([t for t in texts if t is not None])) == {128}
    assert trace.text_of(b"another") is None


def test_shapes_that_cannot_be_are_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="no reading 'z'"):
        make_trace("zipf_hotspot", reading="z")
    with pytest.raises(ValueError, match="leave no room"):
        make_trace("zipf_hotspot", system_tokens=500)
    with pytest.raises(ValueError, match="between 0 and 1"):
        make_trace("zipf_hotspot", hot_rate=1.5)
    with pytest.raises(ValueError, match="drawn from real lists"):
        next(ZipfHotspot(0, reading="e").skeletons())


def test_the_order_of_readings_shows_in_what_can_be_shared() -> None:
    from loadgen.traces.describe import sharing

    shares = [
        sharing(make_trace("zipf_hotspot", count=1000, reading=r).requests)["prefix_repeated"]
        for r in ("a", "2", "3", "d")
    ]
    assert shares == sorted(shares)
