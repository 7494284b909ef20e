"""Loading tokenizers, what is learned of them, and where a template puts its texts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jinja2 import Environment
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from prism_ray.prompt import (
    PromptLimits,
    PromptTokenizer,
    Splitter,
    TokenizerNotFound,
    load_tokenizer,
)
from prism_ray.prompt.chunks import MIN_CHARS
from prism_ray.prompt.content_format import ContentFormat, content_format
from prism_ray.prompt.locate import Place, locate

from .stand_in_models import PARTS_TEMPLATE, with_template


def test_the_builtin_tokenizer_loads_by_name_and_gives_any_text_back() -> None:
    tokenizer = load_tokenizer("builtin")
    for text in ("", "plain", " \n\t x  12", "é e\u0301 漢字 👩\u200d👩\u200d👧 שלום", "\x00\x7f"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_builtin_tokenizer_is_small() -> None:
    directory = Path(sys.modules["prism_ray"].__file__ or "").parent / "data" / "builtin-tokenizer"
    assert sum(f.stat().st_size for f in directory.iterdir()) < 200_000


def test_loading_and_rendering_imports_no_torch() -> None:
    code = (
        "import sys; from prism_ray.prompt import *; t = load_tokenizer('builtin');"
        "Splitter(t, PromptLimits(), b's').chat({'messages': [{'role': 'user', 'content': 'x'}]}, b't');"
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_importing_the_room_imports_no_transformers() -> None:
    code = "import sys, prism_ray.prompt; assert 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_directory_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerNotFound, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_offsets_are_the_ends_of_tokens(tokenizer: PromptTokenizer) -> None:
    text = "The harbour bridge.\n\n 12 é漢👩\u200d👧 end"
    ids, ends = tokenizer.encode_with_offsets(text)
    assert ids == tokenizer.encode(text)
    assert ends == sorted(ends)
    assert ends[-1] == len(text)


def test_offsets_do_not_shrink_where_the_post_processor_would_trim_them(tmp_path: Path) -> None:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\w+|\W+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(["end.  end.  "] * 50, trainer)
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    ids, ends = tokenizer.encode_with_offsets("end.  end")
    assert len(ids) == 3
    assert ends == [3, 6, 9]


def test_a_class_that_splits_otherwise_than_the_file_says_is_mended(tmp_path: Path) -> None:
    directory = with_template(tmp_path, PARTS_TEMPLATE, tokenizer_class="GPT2Tokenizer")
    text = "item  1234   5"  # GPT-2's own splitting would not part the digits
    assert load_tokenizer(directory).encode(text) == load_tokenizer("builtin").encode(text)


def test_a_piece_continues_what_stands_before_it(
    tokenizer_named: Callable[[str], PromptTokenizer],
) -> None:
    tokenizer = tokenizer_named("llama2")
    assert tokenizer.joins_pieces
    left, right = tokenizer.encode("Licen"), tokenizer.encode_piece("sed work")
    assert tokenizer.decode(left + right) == "Licensed work"
    assert tokenizer.decode(left + tokenizer.encode("sed work")) == "Licen sed work"


def test_bos_comes_before_a_plain_prompt_only(
    tokenizer_named: Callable[[str], PromptTokenizer],
) -> None:
    tokenizer = tokenizer_named("llama2")
    assert tokenizer.special_prefix == [tokenizer.bos_token_id]
    assert tokenizer.bos_token_id not in tokenizer.encode("x")
    assert tokenizer_named("builtin").special_prefix == []


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("{{ messages[0].content }}", ContentFormat.STRING),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", ContentFormat.STRING),
        ("{% for p in message['content'] %}{% endfor %}", ContentFormat.PARTS),
        ("{% for p in message.content %}{% endfor %}", ContentFormat.PARTS),
        ("{% for p in msg.content[1:] | list %}{% endfor %}", ContentFormat.PARTS),
        ("{% for p in other.content %}{% endfor %}", ContentFormat.STRING),
        ("{{ 'image' }}", ContentFormat.PARTS),
        ("{% for %}", ContentFormat.STRING),
    ],
)
def test_the_content_format_is_read_off_the_template(template: str, form: ContentFormat) -> None:
    assert content_format(template, Environment()) is form


CHUNK = st.sampled_from(
    [
        "<|im_start|>",
        "<|im_end|>",
        "<think>",
        "</s>",
        "<s>",
        "user\n",
        "a",
        " b",
        "\n\n",
        "7",
        "e\u0301",
    ]
)


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(words=st.lists(CHUNK, min_size=1, max_size=30))
def test_a_long_text_by_chunks_has_the_ids_and_ends_of_the_whole(
    words: list[str], tokenizer: PromptTokenizer
) -> None:
    text = "".join(words) * (MIN_CHARS // len("".join(words)) + 1)
    keys: list[str] = []

    def key_of(chunk: str) -> bytes:
        keys.append(chunk)
        return b"test" + chunk.encode()

    for _ in range(2):  # computed, then remembered
        assert tokenizer.encode_by_chunks(text, key_of) == tokenizer.encode_with_offsets(text)
    assert "".join(keys) in ("", text * 2)


def test_earlier_turns_are_not_tokenized_again(builtin: Splitter) -> None:
    splitter = Splitter(builtin._tokenizer, PromptLimits(), b"chunk secret")
    turns = [
        {"role": role, "content": f"{role} {n} says a lot. " * 20}
        for n in range(5)
        for role in ("user", "assistant")
    ]
    splitter.chat({"messages": [*turns[:8], {"role": "user", "content": "so?"}]}, b"t")
    misses = builtin._tokenizer.cache.misses
    splitter.chat({"messages": [*turns, {"role": "user", "content": "and?"}]}, b"t")
    assert builtin._tokenizer.cache.misses == misses + 3


class TestLocate:
    def render(self, template: Callable[[Sequence[str]], str], *texts: str) -> list[str | None]:
        rendered = template(texts)
        places = locate(rendered, texts, template)
        return [None if p is None else rendered[p.start : p.end] for p in places]

    def test_texts_that_occur_elsewhere_are_told_apart(self) -> None:
        rendered = "a[a]a"
        assert locate(rendered, ["a"], lambda t: f"a[{t[0]}]a") == [Place(2, 3)]

    def test_stripped_edges_are_left_out_and_kept_ones_are_in(self) -> None:
        assert self.render(lambda t: f"<{t[0].strip()}|{t[1]}>", " a\n", " b\n") == ["a", " b\n"]

    def test_blank_and_dropped_texts_have_no_place(self) -> None:
        assert self.render(lambda t: f"<{t[0]}{t[2]}>", " \n", "gone", "x") == [None, None, "x"]

    def test_a_text_cut_off_in_front_is_found_by_its_end(self) -> None:
        found = self.render(lambda t: f"<{t[0].split('|')[-1].lstrip()}>", "thought|  answer ")
        assert found == ["answer "]

    def test_a_text_cut_off_at_the_back_is_found_by_its_start(self) -> None:
        assert self.render(lambda t: f"<{t[0].split('|')[0]}>", " answer|thought") == [" answer"]

    def test_marks_that_change_the_template_give_way_to_a_search(self) -> None:
        def template(texts: Sequence[str]) -> str:
            return "".join(f"[{t}]" if t.startswith("x") else f"({t})" for t in texts)

        assert self.render(template, "xy", "b", "xy") == ["xy", "b", "xy"]

    def test_private_use_characters_in_the_prompt_do_not_matter(self) -> None:
        text = "\ue0001\ue001 \ue002"
        assert self.render(lambda t: f"<{t[0]}>", text) == [text]
