"""A conversation of three turns on a real engine: what was generated becomes the next turn's prefix."""

from __future__ import annotations

import random
import uuid
from pathlib import Path
from typing import Any

import pytest

from prism_ray.dart.anchors import path_keys
from prism_ray.engine.base import EngineCall
from prism_ray.model import SegmentKind
from prism_ray.prompt import PromptLimits, Splitter, load_tokenizer
from prism_ray.prompt.prepared import PreparedPrompt

from .following import Following, retrieval

pytestmark = [pytest.mark.real_engine, pytest.mark.asyncio(loop_scope="session")]

ANSWER_TOKENS = 24
TOOL = {
    "type": "function",
    "function": {
        "name": "get_order",
        "description": "Look up an order of a customer by its number, with its items and status.",
        "parameters": {"type": "object", "properties": {"number": {"type": "string"}}},
    },
}
QUESTIONS = (
    "My order number is one hundred and seven and it has not come yet, where is it?",
    "Could you send the parcel to my sister's house instead, she lives in the same town?",
    "And if she is away all of next week, can she pick it up at the post office?",
)


@pytest.fixture(scope="module")
def splitter(random_tiny: Path) -> Splitter:
    tokenizer = load_tokenizer(random_tiny)
    return Splitter(tokenizer, PromptLimits(automatic_min_tokens=8), b"secret")


@pytest.fixture(scope="module")
def word(random_tiny: Path) -> int:
    """A token whose text is tokenized to itself however often it is repeated."""
    (token,) = load_tokenizer(random_tiny).encode_piece(" order")
    return int(token)


def engine_call(body: dict[str, Any], prompt: PreparedPrompt, word: int) -> EngineCall:
    written = prompt.assemble()
    system = prompt.skeleton.system
    forced = {"max_tokens": ANSWER_TOKENS, "ignore_eos": True, "logit_bias": {str(word): 100}}
    return EngineCall(
        uuid.uuid4().hex,
        "chat",
        {**written.body, **forced, "temperature": 0},
        written.prompt_ids,
        boundaries=written.boundaries,
        segments=written.segments,
        path_keys=written.path_keys,
        system_tokens=system.tokens if system else 0,
    )


async def test_turns_are_kept_and_foreseen_as_the_conversation_goes_on(
    following: Following, splitter: Splitter, word: int
) -> None:
    engine, chooser = following.engine, random.Random(4)
    assert await engine.flush_cache()
    policy = "You are the agent of a shop. Never promise refunds. Be brief and polite at all times."
    messages: list[dict[str, Any]] = [{"role": "system", "content": policy}]
    lengths: list[tuple[int, int, int]] = []
    answer_keys: list[bytes] = []
    for turn, question in enumerate(QUESTIONS):
        messages.append({"role": "user", "content": question})
        body = {"model": "tiny", "messages": list(messages), "tools": [TOOL]}
        prompt = splitter.chat(body, b"tenant")
        skeleton = prompt.skeleton
        path = skeleton.path(skeleton.native_order)
        predicted = following.exact.match(path).cached_tokens
        call = engine_call(body, prompt, word)
        (chunk,) = await following.driver.answer(call)
        finish = await following.driver.finished(call)
        lengths.append((finish.prompt_tokens, predicted, finish.cached_tokens))
        message = chunk.payload["choices"][0]["message"]
        assert message["content"].split() == ["order"] * ANSWER_TOKENS
        messages.append({"role": "assistant", "content": message["content"]})
        turns = [s for s in skeleton.segments if s.kind is SegmentKind.TURN]
        assert len(turns) == 2 * turn, "questions and answers of earlier turns are segments"
        if turn:
            answer_keys.append(path_keys(path)[-1])
        # Others press into the pool in between: their private ends go first, not this conversation.
        for _ in range(3):
            await following.serve(retrieval(chooser, documents=4))
    (first, _, _), (second, predicted_2, cached_2), (_, predicted_3, cached_3) = lengths
    # All of the first turn and its answer but the last token, whose KV was never computed.
    assert cached_2 >= first + ANSWER_TOKENS - 1
    assert cached_3 >= second + ANSWER_TOKENS - 1
    # The first answer was nobody's when turn 2 came and is a segment since: turn 3 is foreseen
    # as far as segments reach, which is past the first answer.
    spans = following.exact.spans()
    assert all(key in spans for key in answer_keys)
    assert spans[answer_keys[0]][1] >= first + ANSWER_TOKENS
    assert predicted_3 >= spans[answer_keys[0]][1] > predicted_2
    assert spans == (await following.walk()).spans()
