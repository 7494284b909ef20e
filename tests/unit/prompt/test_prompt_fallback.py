"""Templates that look at what they write: counts stay exact, or the prompt says that they don't."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prism_ray.prompt import PromptLimits, Splitter, load_tokenizer

from .stand_in_models import with_template

BIG = "BIG the city council met"
WORDS = ("one bridge", "two harbours", "three boats", BIG)

FIRST_IS_BIG = """\
{%- if messages[0].content.startswith('BIG') -%}{{- '(loud) ' -}}{%- endif -%}
{{- messages[0].content -}}
"""
LAST_IS_ONE = """\
{{- messages[0].content -}}
{%- if messages[0].content.endswith('one bridge') -%}{{- ' (one)' -}}{%- endif -%}
"""


def body(*words: str) -> dict[str, Any]:
    parts = [
        {"type": "text", "text": word, "prism": {"segment": word[:3], "reorderable": True}}
        for word in words
    ]
    return {"messages": [{"role": "user", "content": parts}]}


def splitter(directory: Path, template: str) -> Splitter:
    tokenizer = load_tokenizer(with_template(directory, template))
    return Splitter(tokenizer, PromptLimits(), b"s")


@pytest.mark.parametrize("rewrite", ["upper", "capitalize"])
def test_texts_that_a_template_rewrites_move_only_if_they_come_out_the_same(
    rewrite: str, tmp_path: Path
) -> None:
    template = "{{- messages[0].content | " + rewrite + " -}}"
    prepared = splitter(tmp_path, template).chat(body(*WORDS), b"t")
    (run,) = prepared.skeleton.runs
    order = list(prepared.skeleton.native_order)
    order[run[0]], order[run[-1]] = run[-1], run[0]
    assembled = prepared.assemble(tuple(order))
    assert not assembled.fallback
    written = " ".join(part["text"] for part in assembled.body["messages"][0]["content"])
    assert assembled.text == getattr(written, rewrite)()
    assert len(assembled.prompt_ids) == prepared.skeleton.prompt_tokens


def test_segments_stay_where_moving_them_by_one_changes_the_fixed_text(tmp_path: Path) -> None:
    prepared = splitter(tmp_path, FIRST_IS_BIG).chat(body(BIG, "two harbours"), b"t")
    assert prepared.skeleton.runs == ()


def test_an_order_that_the_template_writes_otherwise_is_tokenized_as_a_whole(
    tmp_path: Path,
) -> None:
    splits = splitter(tmp_path, LAST_IS_ONE)
    prepared = splits.chat(body(*WORDS), b"t")
    assert prepared.skeleton.runs == ()  # a rotation already puts the first text last
    prepared = splits.chat(body("two harbours", "one bridge", "three boats", BIG), b"t")
    assert prepared.skeleton.runs == ((0, 1, 2, 3),)
    plain = prepared.assemble((1, 0, 2, 3))
    assert not plain.fallback
    odd = prepared.assemble((0, 2, 3, 1))
    assert odd.fallback
    assert odd.text.endswith("one bridge (one)")
    assert odd.prompt_ids == splits._tokenizer.encode(odd.text)
    assert odd.boundaries == (len(odd.prompt_ids),)
    assert odd.segments == odd.path_keys == (None,)
    assert odd.body["messages"][0]["content"][-1]["text"] == "one bridge"


def test_a_tokenizer_whose_pieces_cannot_be_joined_moves_nothing(
    tmp_path: Path, monkeypatch: Any
) -> None:
    splits = splitter(tmp_path, "{{- messages[0].content -}}")
    assert splits.chat(body(*WORDS), b"t").skeleton.runs
    monkeypatch.setattr(splits._tokenizer, "_guard", None)
    prepared = splits.chat(body(*WORDS), b"t")
    assert prepared.skeleton.runs == ()
    assert prepared.assemble().prompt_ids == splits._tokenizer.encode(" ".join(WORDS))


def test_many_parts_with_blank_edges_take_no_more_than_linear_time(tmp_path: Path) -> None:
    splits = splitter(tmp_path, "{{- messages[0].content.strip() -}}")
    blanks = [{"type": "text", "text": ""}] * 30_000
    marked = body(*[f" {n}" for n in range(250)])["messages"][0]["content"]
    prompt = {"messages": [{"role": "user", "content": [*blanks, *marked]}]}
    assert splits.chat(prompt, b"t").skeleton.runs == ()
