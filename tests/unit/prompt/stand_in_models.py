"""Small stand-ins for other families: their templates, and their make of tokenizer."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, processors, trainers

ROOT = Path(__file__).parents[3]
DATA = Path(os.environ.get("PRISM_SHARED_DATA", ROOT.parent / "shared" / "data"))
MODELS = Path(os.environ.get("PRISM_MODELS_DIR", ROOT / "models"))
BUILTIN = ROOT / "prism_ray" / "data" / "builtin-tokenizer"

LLAMA2_TEMPLATE = (Path(__file__).parent / "llama2_chat.jinja").read_text()

PARTS_TEMPLATE = """\
{%- for message in messages -%}
{{- '[' + message.role + ']' -}}
{%- if message.content is string -%}{{- message.content | trim -}}
{%- else -%}{%- for part in message.content -%}{{- '(' + part.text | trim + ')' -}}{%- endfor -%}
{%- endif -%}
{%- endfor -%}
{{- '[assistant]' -}}
"""


def with_template(directory: Path, template: str, source: Path = BUILTIN, **config: Any) -> Path:
    """A copy of a tokenizer with another chat template."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text((source / "tokenizer.json").read_text())
    old = json.loads((source / "tokenizer_config.json").read_text())
    new = old | config | {"chat_template": template}
    (directory / "tokenizer_config.json").write_text(json.dumps(new))
    return directory


def sentencepiece_like(directory: Path) -> Path:
    """A tokenizer of Llama-2's make: a dummy space in front, spaces as letters, bytes as fallback."""
    special = ["<unk>", "<s>", "</s>"]
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=[*special, *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
        max_token_length=12,
    )
    words = (ROOT / "LICENSE").read_text().replace("\n", " ").split()
    tokenizer.train_from_iterator([" ".join(words[n : n + 8]) for n in range(len(words))], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    # Only the three are special; bytes are ordinary tokens.
    saved = json.loads((directory / "tokenizer.json").read_text())
    saved["added_tokens"] = saved["added_tokens"][:3]
    (directory / "tokenizer.json").write_text(json.dumps(saved))
    config = {
        "tokenizer_class": "LlamaTokenizer",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "chat_template": LLAMA2_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory
