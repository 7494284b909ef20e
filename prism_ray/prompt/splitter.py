"""From an OpenAI body to a prepared prompt: what is rendered, how it is cut, how it is tokenized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from prism_ray.model import SegmentKind
from prism_ray.prompt.conversation import Conversation
from prism_ray.prompt.errors import PromptError, expected
from prism_ray.prompt.fields import (
    CompletionFields,
    check_segment_count,
    completion_fields,
    segments_off,
)
from prism_ray.prompt.identity import Identities
from prism_ray.prompt.layout import Layout, Slot
from prism_ray.prompt.limits import PromptLimits
from prism_ray.prompt.prepared import PieceIds, PreparedPrompt, cut
from prism_ray.prompt.sources import ChatSource, PlainSource, Source, rotated
from prism_ray.prompt.tokenizer import PromptTokenizer


class Splitter:
    """Splits prompts for one model. Thread-safe; CPU-bound, a few milliseconds for a long prompt.

    ``template_kwargs`` are the engine's own defaults for the chat template's variables.
    """

    def __init__(
        self,
        tokenizer: PromptTokenizer,
        limits: PromptLimits,
        secret: bytes,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._limits = limits
        self._secret = secret
        self._template_kwargs = dict(template_kwargs or {})

    def tables(self) -> dict[str, int]:
        """Sizes of what is remembered of earlier prompts; bounded."""
        cache = self._tokenizer.cache
        return {"cached_texts": len(cache), "cached_text_tokens": cache.held_tokens}

    def chat(self, body: Mapping[str, Any], tenant: bytes) -> PreparedPrompt:
        """Prepare a chat body. Raises PromptError (400) with the path of what is wrong."""
        opaque = segments_off(body)
        conversation = Conversation(
            body, self._tokenizer.content_format, self._limits, self._template_kwargs
        )
        marked = sum(site.mark is not None for site in conversation.sites)
        check_segment_count(marked, "messages", self._limits)
        chat = ChatSource(body, conversation, self._tokenizer)
        _check_unicode(chat.rendered, "messages")
        layout = Layout(chat.rendered, 0, ()) if opaque else chat.layout()
        if layout.movable and not chat.writes(layout, rotated(layout)):
            layout = layout.pinned()
        return self._prepare(layout, Identities(self._secret, tenant), chat)

    def completions(self, body: Mapping[str, Any], tenant: bytes) -> PreparedPrompt:
        """Prepare a completion body. Raises PromptError (400) with the path of what is wrong."""
        fields = completion_fields(body, self._limits)
        identities = Identities(self._secret, tenant)
        if fields.segments is None:
            prompt = self._plain_prompt(body)
            if not isinstance(prompt, str):
                return self._given_ids(body, prompt, identities)
            layout = Layout(prompt, 0, ())
        elif body.get("prompt") is not None:
            raise PromptError(400, "prompt", "either prompt or prism.segments, not both")
        else:
            layout = _listed_layout(fields)
        if not layout.text:
            raise PromptError(400, "prompt", "the prompt is empty")
        _check_unicode(layout.text, "prompt")
        source = PlainSource(body, layout.text, self._tokenizer.special_prefix)
        return self._prepare(layout, identities, source)

    def _prepare(self, layout: Layout, identities: Identities, source: Source) -> PreparedPrompt:
        """Piecewise if anything may move, else the whole text at once, as the engine does."""
        if layout.movable and self._tokenizer.joins_pieces:
            layout, ids = self._piecewise(layout, identities)
        else:
            layout, ids = self._whole(layout.pinned(), identities)
        ids = _prefixed(ids, source.prefix_ids)
        ids = replace(ids, private=[*ids.private, *source.tail_ids])
        layout = replace(layout, text=layout.text + source.tail)
        prepared = PreparedPrompt(
            layout,
            ids,
            identities,
            write=lambda order: source.written(layout, order),
            encode=lambda text: [*source.prefix_ids, *self._tokenizer.encode(text)],
            native_body=source.body,
        )
        self._check_length(prepared.skeleton.prompt_tokens)
        return prepared

    def _piecewise(self, layout: Layout, identities: Identities) -> tuple[Layout, PieceIds]:
        """Every piece tokenized by itself: a segment has the same ids wherever it stands."""

        def cached(text: str, *, leading: bool = False) -> Sequence[int]:
            key = identities.tokens_of(text, leading=leading)
            return self._tokenizer.encode_cached(key, text, leading=leading) if text else ()

        segments = [cached(text) for text in layout.segments]
        wanted = self._wanted(layout, [len(ids) for ids in segments])
        layout = layout.keep(wanted)
        kept = tuple(ids for ids, keep in zip(segments, wanted, strict=True) if keep)
        gaps = tuple(
            cached(gap, leading=not n and not layout.system) for n, gap in enumerate(layout.gaps)
        )
        private = self._tokenizer.encode_piece(layout.private)
        return layout, PieceIds(cached(layout.system, leading=True), gaps, kept, private)

    def _whole(self, layout: Layout, identities: Identities) -> tuple[Layout, PieceIds]:
        ids, ends = self._tokenizer.encode_by_chunks(layout.text, identities.chunk)
        lengths = [len(piece) for piece in cut(ids, ends, layout).segments]
        layout = layout.keep(self._wanted(layout, lengths))
        return layout, cut(ids, ends, layout)

    def _wanted(self, layout: Layout, tokens: Sequence[int]) -> list[bool]:
        """Marked segments, and the first of those found automatically that are long enough."""
        free = self._limits.segments - sum(slot.marked for slot in layout.slots)
        wanted = []
        for slot, length in zip(layout.slots, tokens, strict=True):
            automatic = not slot.marked and length >= self._limits.automatic_min_tokens and free > 0
            free -= automatic
            wanted.append(length > 0 and (slot.marked or automatic))
        return wanted

    def _check_length(self, prompt_tokens: int) -> None:
        limit = self._limits.context_length
        if limit and prompt_tokens >= limit:
            message = (
                f"the prompt has {prompt_tokens} tokens; this model takes {limit} tokens, "
                "prompt and answer together"
            )
            raise PromptError(400, "", message, "context_length_exceeded")

    def _plain_prompt(self, body: Mapping[str, Any]) -> str | list[int]:
        """``prompt`` as one text or one list of ids."""
        prompt = body.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
            prompt = prompt[0]
        if isinstance(prompt, str):
            return prompt
        if not isinstance(prompt, list):
            raise expected("prompt", "a string or a list of token ids", prompt)
        if any(isinstance(item, str | list) for item in prompt):
            raise PromptError(400, "prompt", "one prompt a request: a list may hold only one")
        if not prompt:
            raise PromptError(400, "prompt", "the prompt is empty")
        for place, token in enumerate(prompt):
            known = isinstance(token, int) and not isinstance(token, bool)
            if not known or not 0 <= token < self._tokenizer.vocabulary_size:
                what = f"a token id below {self._tokenizer.vocabulary_size}"
                raise expected(f"prompt[{place}]", what, token)
        return prompt

    def _given_ids(
        self, body: Mapping[str, Any], ids: list[int], identities: Identities
    ) -> PreparedPrompt:
        """A prompt that came as ids: opaque, its text unknown."""
        self._check_length(len(ids))
        source, layout = PlainSource(body, ids), Layout("", 0, ())
        pieces = PieceIds((), (), (), ids)
        return PreparedPrompt(
            layout,
            pieces,
            identities,
            write=lambda order: source.written(layout, order),
            encode=self._tokenizer.encode,
            native_body=source.body,
        )


def _prefixed(ids: PieceIds, prefix: Sequence[int]) -> PieceIds:
    """With ``prefix`` in front of the first fixed piece."""
    if not prefix:
        return ids
    if ids.system:
        return replace(ids, system=[*prefix, *ids.system])
    if ids.gaps:
        return replace(ids, gaps=([*prefix, *ids.gaps[0]], *ids.gaps[1:]))
    return replace(ids, private=[*prefix, *ids.private])


def _listed_layout(fields: CompletionFields) -> Layout:
    """``system``, the segments one after the other, and ``suffix``, with nothing in between."""
    slots: list[Slot] = []
    texts = [fields.system]
    offset = len(fields.system)
    run = 0
    for number, segment in enumerate(fields.segments or ()):
        end = offset + len(segment.text)
        if segment.text:
            own = run if segment.mark.reorderable else None
            label = segment.mark.label
            slots.append(Slot(offset, end, SegmentKind.DOCUMENT, label, own, number, True))
        if not segment.mark.reorderable or not segment.text:
            run += 1
        texts.append(segment.text)
        offset = end
    return Layout("".join([*texts, fields.suffix]), len(fields.system), tuple(slots))


def _check_unicode(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"not valid Unicode: a lone surrogate {text[error.start]!a}"
        raise PromptError(400, path, message) from None
