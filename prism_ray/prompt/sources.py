"""What a prompt's own rules write for an order: the chat template, or nothing but the pieces.

Knows bodies and texts; which order, and what is cached, is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from prism_ray.model import Order
from prism_ray.prompt.chat_layout import chat_layout
from prism_ray.prompt.conversation import Conversation
from prism_ray.prompt.fields import strip_messages, strip_prism
from prism_ray.prompt.layout import Layout
from prism_ray.prompt.locate import locate
from prism_ray.prompt.prepared import Written
from prism_ray.prompt.tokenizer import PromptTokenizer


class Source(Protocol):
    """``body`` is the client's, without ``prism``; ``prefix_ids`` and ``tail`` (with its ids) stand
    before and after all that a layout describes."""

    body: dict[str, Any]
    prefix_ids: list[int]
    tail: str
    tail_ids: list[int]

    def written(self, layout: Layout, order: Order) -> Written:
        """The prompt's text in ``order``, and the body that says the same to the engine."""


class ChatSource:
    """A conversation and its template: what the engine itself would write for an order."""

    def __init__(
        self, body: Mapping[str, Any], conversation: Conversation, tokenizer: PromptTokenizer
    ) -> None:
        self._conversation = conversation
        self._tokenizer = tokenizer
        self.body = strip_prism(body)
        self.rendered = self._render(conversation.texts)
        self.prefix_ids: list[int] = []
        self.tail = conversation.tail(conversation.texts)
        self.tail_ids = self._encode_tail()

    def _encode_tail(self) -> list[int]:
        """An answer's beginning, encoded as SGLang does: by itself, without a BOS in front."""
        if not self.tail:
            return []
        ids = [*self._tokenizer.special_prefix, *self._tokenizer.encode(self.tail)]
        return ids[1:] if ids and ids[0] == self._tokenizer.bos_token_id else ids

    def layout(self) -> Layout:
        texts = self._conversation.texts
        places = locate(self.rendered, texts, self._render)
        return chat_layout(self._conversation, self.rendered, places, self._tokenizer.trimming)

    def writes(self, layout: Layout, order: Order) -> bool:
        """Does the template write, for this order, what the layout's pieces say?"""
        return self._render(self._texts(layout, order)) == layout.written(order)

    def written(self, layout: Layout, order: Order) -> Written:
        places = _moves(layout, order)
        text = self._render(self._texts(layout, order)) + self.tail
        messages = strip_messages(self._conversation.reordered(places))
        return Written(text, self.body | {"messages": messages})

    def _texts(self, layout: Layout, order: Order) -> list[str]:
        texts = self._conversation.texts
        moved = {to: texts[source] for to, source in _moves(layout, order).items()}
        return [moved.get(n, text) for n, text in enumerate(texts)]

    def _render(self, texts: Sequence[str]) -> str:
        conversation = self._conversation
        messages = conversation.messages(texts)
        return self._tokenizer.render_chat(messages, conversation.tools, conversation.kwargs)


class PlainSource:
    """A completion prompt: nothing stands between its pieces and the text."""

    def __init__(
        self, body: Mapping[str, Any], prompt: str | list[int], prefix_ids: Sequence[int] = ()
    ) -> None:
        self.prefix_ids = list(prefix_ids)
        self.body = strip_prism(body) | {"prompt": prompt}
        self.tail = ""
        self.tail_ids: list[int] = []

    def written(self, layout: Layout, order: Order) -> Written:
        text = layout.written(order)
        return Written(text, self.body | {"prompt": text})


def _moves(layout: Layout, order: Order) -> dict[int, int]:
    """Site -> the site whose text stands there under ``order``; only those that change."""
    slots = layout.slots
    return {slots[s].site: slots[i].site for s, i in enumerate(order) if s != i}


def rotated(layout: Layout) -> Order:
    """An order in which every segment of every run stands in another's slot."""
    order = list(range(len(layout.slots)))
    runs: dict[int, list[int]] = {}
    for n, slot in enumerate(layout.slots):
        if slot.run is not None:
            runs.setdefault(slot.run, []).append(n)
    for members in runs.values():
        for place, index in zip(members, members[1:] + members[:1], strict=True):
            order[place] = index
    return tuple(order)
