"""Questions put to a real model at temperature 0, in given orders; scores nothing.

Prompts are written by the product's own splitter: the model's chat template around the passages as
movable content parts, so that an order here is the prompt that a replica would have been sent.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from loadgen.traces.questions import SYSTEM, Question
from prism_ray.engine.base import Engine, EngineCall
from prism_ray.model import Order
from prism_ray.prompt import Assembled, PromptLimits, Splitter, load_tokenizer

SHORT = "Answer in one to three words."
"""Behind the question, where small models still mind it."""

_SECRET = b"one client asks here"


class Reply(NamedTuple):
    """What the model said, and how much of the prompt it had cached."""

    text: str
    prompt_tokens: int
    cached_tokens: int


class Asker:
    """Asks one engine. ``body`` has fields of the chat body besides messages and lengths.

    ValueError for a question whose passages the model's template cannot reorder.
    """

    def __init__(
        self,
        engine: Engine,
        model: str | Path,
        context_length: int,
        output_tokens: int,
        body: Mapping[str, Any] | None = None,
    ) -> None:
        limits = PromptLimits(context_length=context_length - output_tokens)
        self._splitter = Splitter(load_tokenizer(model), limits, _SECRET)
        self._engine = engine
        self._body = {"temperature": 0, "max_tokens": output_tokens, "model": str(model)}
        self._body |= dict(body or {})

    def written(self, question: Question, order: Order) -> Assembled:
        """The prompt of a question with its passages in ``order``."""
        prepared = self._splitter.chat(self._body | {"messages": messages(question)}, b"")
        written = prepared.assemble(order)
        if written.fallback:
            raise ValueError(f"question {question.id}: the template changes passages that move")
        return written

    async def ask(self, question: Question, order: Order) -> Reply:
        """The model's answer. Raises EngineRefused, EngineDied, PromptError for a long prompt."""
        written = self.written(question, order)
        call = EngineCall(uuid.uuid4().hex, "chat", written.body, written.prompt_ids)
        payload: dict[str, Any] = {}
        async for chunk in await self._engine.submit(call):
            payload = chunk.payload
        usage = payload["usage"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        text = payload["choices"][0]["message"]["content"] or ""
        return Reply(text.strip(), int(usage["prompt_tokens"]), int(cached))


def messages(question: Question) -> list[dict[str, Any]]:
    """The chat: instructions, each passage as a movable part, then the question."""
    parts: list[dict[str, Any]] = [
        {
            "type": "text",
            "text": f"Passage: {passage.text}\n\n",
            "prism": {"segment": passage.id.hex(), "reorderable": True},
        }
        for passage in question.passages
    ]
    parts.append({"type": "text", "text": f"Question: {question.text}\n{SHORT}"})
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": parts}]
