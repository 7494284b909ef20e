"""The model's tokenizer and chat template. The only module that touches transformers; never torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from prism_ray.prompt.chunks import MIN_CHARS, ChunkCutter
from prism_ray.prompt.content_format import ContentFormat, content_format
from prism_ray.prompt.errors import PromptError
from prism_ray.prompt.token_cache import TokenCache

BUILTIN = "builtin"
"""Name of the small tokenizer that ships with the package."""

_BOS_FLAG_CLASSES = ("Llama", "CodeLlama", "Gemma", "Cohere")


class TokenizerNotFound(ValueError):
    """No usable fast tokenizer under that name or path; the message says what was missing."""


def load_tokenizer(path_or_name: str | Path, *, cache_tokens: int = 1_000_000) -> PromptTokenizer:
    """Load ``builtin``, a directory with ``tokenizer.json``, or a Hugging Face id.

    Picks the class and mends it as SGLang does, without importing torch. Raises TokenizerNotFound.
    """
    source = str(_builtin_dir() if str(path_or_name) == BUILTIN else path_or_name)
    written = _file(source, "tokenizer.json")
    if written is None:
        raise TokenizerNotFound(f"{source} has no tokenizer.json (a fast tokenizer is needed)")
    config_file = _file(source, "tokenizer_config.json")
    config = json.loads(config_file.read_text()) if config_file else {}
    named = _tokenizer_class(config)
    try:
        loaded = named.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise TokenizerNotFound(f"no tokenizer at {source!r}: {error}") from error
    if named is not _generic_class():
        _restore_components(loaded.backend_tokenizer, Tokenizer.from_file(str(written)))
    return PromptTokenizer(loaded, _special_prefix(loaded, config), TokenCache(cache_tokens))


def _builtin_dir() -> Path:
    return Path(__file__).parent.parent / "data" / "builtin-tokenizer"


def _file(source: str, name: str) -> Path | None:
    """A file of a local directory, or of a Hugging Face repository (fetched once)."""
    if Path(source).is_dir():
        path = Path(source) / name
        return path if path.is_file() else None
    from transformers.utils import cached_file

    try:
        found = cached_file(source, name, _raise_exceptions_for_missing_entries=False)
    except OSError as error:
        raise TokenizerNotFound(f"no tokenizer at {source!r}: {error}") from error
    return Path(found) if found else None


def _tokenizer_class(config: Mapping[str, Any]) -> Any:
    """The class that the model names, if transformers has it as a fast one, else the generic one."""
    import transformers

    generic = _generic_class()
    name = str(config.get("tokenizer_class", "")).removesuffix("Fast")
    named = getattr(transformers, name, None) if name else None
    return named if isinstance(named, type) and issubclass(named, generic) else generic


def _generic_class() -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast


def _restore_components(backend: Any, written: Tokenizer) -> None:
    """Give back what the class replaced, where ``tokenizer.json`` says another kind of splitting."""
    ours, theirs = backend.pre_tokenizer, written.pre_tokenizer
    if ours is not None and theirs is not None and type(ours) is not type(theirs):
        backend.pre_tokenizer = theirs
        backend.decoder = written.decoder


def _special_prefix(loaded: Any, config: Mapping[str, Any]) -> list[int]:
    """Ids that the model's tokenizer puts before a plain text (completions, not chat): BOS, mostly.

    The post-processor says so, except for the families whose ``add_bos_token`` flag rules.
    """
    if str(config.get("tokenizer_class", "")).startswith(_BOS_FLAG_CLASSES):
        flag = config.get("add_bos_token")
        wanted = loaded.bos_token_id is not None and (flag is None or flag)
        return [loaded.bos_token_id] if wanted else []
    backend = loaded.backend_tokenizer
    plain = backend.encode("a", add_special_tokens=False).ids
    full: list[int] = backend.encode("a").ids
    return full[: full.index(plain[0])] if plain and plain[0] in full else []


@dataclass(frozen=True, slots=True)
class Trimming:
    """Does the template strip a user message's edges, and does it strip every part by itself?"""

    start: bool = False
    end: bool = False
    each_part: bool = False


class PromptTokenizer:
    """Text to ids, and messages to text, exactly as the engine would.

    Thread-safe. ``special_prefix`` are the ids that come before a plain completion prompt.
    """

    def __init__(self, hf_tokenizer: Any, special_prefix: Sequence[int], cache: TokenCache) -> None:
        self._hf = hf_tokenizer
        self._backend = hf_tokenizer.backend_tokenizer
        # Post-processors add special tokens, which nothing here asks for, and may trim offsets,
        # which would move anchors past a token's end.
        self._backend.post_processor = None
        self._backend.no_truncation()
        self._backend.no_padding()
        self.special_prefix = list(special_prefix)
        self.bos_token_id: int | None = hf_tokenizer.bos_token_id
        self.vocabulary_size: int = self._backend.get_vocab_size(with_added_tokens=True)
        self.cache = cache
        self.content_format = self._content_format()
        self.trimming = self._probe_trimming()
        self._guard = self._probe_guard()
        added = self._backend.get_added_tokens_decoder().values()
        self._cutter = ChunkCutter(added, self.encode)

    # text to ids

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``, no special tokens added; special tokens spelled out in it are parsed."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[int]]:
        """``(ids, ends)``: ends[i] is the offset in characters right after token i's last one."""
        encoding = self._backend.encode(text, add_special_tokens=False)
        return encoding.ids, [end for _, end in encoding.offsets]

    def encode_by_chunks(
        self, text: str, key_of: Callable[[str], bytes]
    ) -> tuple[list[int], list[int]]:
        """``encode_with_offsets``, with the ids of a long text's chunks remembered by ``key_of``."""
        if len(text) < MIN_CHARS or not self._cutter.exact:
            return self.encode_with_offsets(text)
        ids: list[int] = []
        ends: list[int] = []
        offset = 0
        for chunk in self._cutter.cut(text):
            both = self.cache.get(key_of(chunk), partial(self._ids_then_ends, chunk))
            half = len(both) // 2
            ids += both[:half]
            ends += [offset + end for end in both[half:]]
            offset += len(chunk)
        return ids, ends

    def _ids_then_ends(self, text: str) -> chain[int]:
        return chain(*self.encode_with_offsets(text))

    def encode_cached(self, key: bytes, text: str, *, leading: bool = False) -> Sequence[int]:
        """``encode_piece(text)``, or ``encode(text)`` of a ``leading`` one, remembered under ``key``
        (a digest of the text)."""
        encode = self.encode if leading else self.encode_piece
        return self.cache.get(key, lambda: encode(text))

    def encode_piece(self, text: str) -> list[int]:
        """Ids of a text that continues another: no dummy space in front, unlike at a prompt's start."""
        if not self._guard or not text:
            return self.encode(text)
        return self.encode(self._guard + text)[len(self.encode(self._guard)) :]

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._backend.decode(list(ids), skip_special_tokens=False)
        return text

    @property
    def joins_pieces(self) -> bool:
        """Do the ids of two pieces, put together, mean the two texts put together?"""
        return self._guard is not None

    # messages to text

    @property
    def has_chat_template(self) -> bool:
        return bool(self._hf.chat_template)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The template's text, generation prompt included. PromptError (400) if it refuses."""
        if not self.has_chat_template:
            raise PromptError(400, "messages", "this model has no chat template; use completions")
        try:
            return self._render(messages, tools, kwargs or {})
        except Exception:
            # Some templates take a tool without its OpenAI wrapper; SGLang tries the same two forms.
            flat = [tool.get("function", tool) for tool in tools] if tools else None
            try:
                return self._render(messages, flat, kwargs or {})
            except Exception as error:
                message = f"the model's chat template refused: {error}"
                raise PromptError(400, "messages", message) from error

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        kwargs: Mapping[str, Any],
    ) -> str:
        text: str = self._hf.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=True, **kwargs
        )
        return text

    # what kind of tokenizer and template it is

    def _content_format(self) -> ContentFormat:
        if not isinstance(self._hf.chat_template, str):
            return ContentFormat.STRING
        environment = ImmutableSandboxedEnvironment(extensions=[loopcontrols])
        return content_format(self._hf.chat_template, environment)

    def _probe_trimming(self) -> Trimming:
        edge = "\n \t"
        parts = [f"{edge}a{edge}", f"{edge}b{edge}", f"{edge}c{edge}"]
        content: Any = " ".join(parts)
        if self.content_format is ContentFormat.PARTS:
            content = [{"type": "text", "text": part} for part in parts]
        try:
            text = self.render_chat([{"role": "user", "content": content}])
        except PromptError:
            return Trimming()
        return Trimming(f"{edge}a" not in text, f"c{edge}" not in text, parts[1] not in text)

    def _probe_guard(self) -> str | None:
        """What to write before a piece so that its ids continue the text: nothing, or a newline.

        SentencePiece-like tokenizers start every text with a dummy space; a character that never
        merges with its successor takes that space on itself. None: pieces cannot be joined at all.
        """
        for guard in ("", "\n"):
            guard_ids = self.encode(guard)
            if all(
                self.encode(guard + right)[: len(guard_ids)] == guard_ids
                and self.decode(
                    self.encode("x" + left) + self.encode(guard + right)[len(guard_ids) :]
                )
                == "x" + left + right
                for left in ("", " a", "1\n")
                for right in ("y", " y", "7", "\ny", "你", "é")
            ):
                return guard
        return None
