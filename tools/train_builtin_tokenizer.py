"""Train the tokenizer that ships with prism_ray (``model.tokenizer: builtin``).

A byte-level BPE of 3,072 tokens over the documentation that comes with Python (``pydoc_data.topics``
and the docstrings of some modules) and the few lines below. It is for the simulated engine and for
tests: any text round-trips, and no download is needed.

    python tools/train_builtin_tokenizer.py prism_ray/data/builtin-tokenizer
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 3072
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MODULES = ("argparse", "asyncio", "collections", "email", "http", "json", "logging", "statistics")

OWN_TEXT = """
You are a helpful assistant. Answer the question with the passages below, and say so when they do
not hold the answer. Passage 1: The city council met on Tuesday to vote on the new harbour bridge.
The question was: which company built it, in what year, and who paid for it? According to the second
passage, the company was founded in 1998 by two engineers, and its share price rose by 12.5 percent.
Customers may cancel a reservation within 24 hours of booking. Ask for the user id first, list the
details of the change, and get explicit confirmation before you call a tool. <tools> </tools>
{"type": "function", "function": {"name": "search", "description": "Search the web", "parameters":
{"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}}}
The president of the country said on Monday that the film, the team and the season were the best in
years; the report was published by a newspaper in New York, and the article named three players.
"""

TEMPLATE = """\
{%- if messages[0].role == 'system' or tools -%}
{{- '<|im_start|>system\\n' -}}
{%- if messages[0].role == 'system' -%}{{- messages[0].content -}}{%- endif -%}
{%- if tools -%}
{{- '\\n\\nTools you may call:\\n<tools>' -}}
{%- for tool in tools -%}{{- '\\n' + (tool | tojson) -}}{%- endfor -%}
{{- '\\n</tools>' -}}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if not (loop.first and message.role == 'system') -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content -}}
{%- for call in message.tool_calls or [] -%}
{{- '\\n<tool_call>\\n' + (call.function | tojson) + '\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def training_text() -> Iterator[str]:
    yield from (OWN_TEXT for _ in range(20))
    yield from (topics[name] for name in sorted(topics))
    for name in MODULES:
        module = importlib.import_module(name)
        yield from (inspect.getdoc(value) or "" for _, value in sorted(vars(module).items()))


def train() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_text(), trainer)
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    directory.mkdir(parents=True, exist_ok=True)
    train().save(str(directory / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 131072,
        "chat_template": TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    main()
