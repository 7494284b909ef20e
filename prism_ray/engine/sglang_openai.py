"""SGLang's own OpenAI handlers over prompts that are token ids already; engine process only.

Parsing, sampling parameters, tools, structured output, usage and stream format are SGLang's. What is
ours is the prompt: ids, request id and hints are put into the request on its way to the scheduler.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
from fastapi.responses import ORJSONResponse, StreamingResponse
from pydantic import ValidationError
from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest
from sglang.srt.entrypoints.openai.serving_completions import OpenAIServingCompletion

from prism_ray.engine.sglang_bodies import field_path, nested_error, openai_error, stream_payload
from prism_ray.engine.sglang_events import ResponseEnd
from prism_ray.engine.sglang_wire import ToReplica

logger = logging.getLogger(__name__)

Send = Callable[..., None]
"""``send(kind, *fields)``: a frame to the replica."""


@dataclass(slots=True)
class _Call:
    """One request on its way through SGLang's handlers."""

    request_id: str
    prompt_ids: list[int]
    hints: dict[str, Any] | None
    cache_salt: str
    reached_manager: asyncio.Event = field(default_factory=asyncio.Event)
    end: ResponseEnd = field(default_factory=ResponseEnd)


class _PromptSetter:
    """The tokenizer manager as the handlers see it: ``generate_request`` sends our prompt.

    Everything else is the manager's own.
    """

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self.calls: dict[str, _Call] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    async def generate_request(self, obj: Any, request: Any = None) -> AsyncIterator[Any]:
        call = self.calls[obj.rid]
        obj.text, obj.input_ids = None, call.prompt_ids
        # The radix cache keeps one namespace per salt; a client's own keys never get here.
        obj.cache_salt, obj.extra_key = call.cache_salt or None, None
        if call.hints is not None:
            obj.kv_hints = call.hints
        call.reached_manager.set()
        outputs = self._manager.generate_request(obj, None)
        try:
            async for output in outputs:
                call.end = _response_end(output["meta_info"])
                yield output
        finally:
            await outputs.aclose()


class OpenAIService:
    """Takes calls, in order, and sends their answers as frames."""

    def __init__(self, manager: Any, template_manager: Any, send: Send) -> None:
        self._manager = manager
        self._send = send
        self._prompts = _PromptSetter(manager)
        self._handlers = {
            "chat": manager.serving_chat_class(self._prompts, template_manager),
            "completions": OpenAIServingCompletion(self._prompts, template_manager),
        }
        self._answers: set[asyncio.Task[None]] = set()

    async def submit(
        self,
        request_id: str,
        endpoint: str,
        body: dict[str, Any],
        prompt_ids: list[int],
        hints: dict[str, Any] | None,
        cache_salt: str,
    ) -> None:
        """Return when the request is in the scheduler's queue, or was refused.

        Calls must not overlap: one after the other is what makes the queue's order theirs.
        """
        try:
            request = _parse(endpoint, body, request_id, prompt_ids)
        except ValidationError as error:
            self._send(ToReplica.REFUSED, request_id, 400, _validation_error(error))
            return
        call = self._prompts.calls[request_id] = _Call(request_id, prompt_ids, hints, cache_salt)
        answer = asyncio.create_task(self._answer(call, self._handlers[endpoint], request))
        self._answers.add(answer)
        answer.add_done_callback(self._answers.discard)
        if await self._dispatched(call, answer):
            self._send(ToReplica.ACCEPTED, request_id)

    async def _dispatched(self, call: _Call, answer: asyncio.Task[None]) -> bool:
        reached = asyncio.create_task(call.reached_manager.wait())
        await asyncio.wait({reached, answer}, return_when=asyncio.FIRST_COMPLETED)
        reached.cancel()
        # With ids given, the manager sends in its next turn of the loop and then says so in the
        # request's state; only a paused engine takes longer.
        turns = 0
        while not answer.done():
            state = self._manager.rid_to_state.get(call.request_id)
            if state is not None and state.dispatched:
                return True
            turns += 1
            await asyncio.sleep(0 if turns < 100 else 0.001)
        return False

    async def _answer(self, call: _Call, handler: Any, request: Any) -> None:
        request_id = call.request_id
        try:
            response = await handler.handle_request(request, None)
            if isinstance(response, StreamingResponse):
                async for part in response.body_iterator:
                    payload = stream_payload(bytes(part) if isinstance(part, memoryview) else part)
                    if payload is not None:
                        self._send(ToReplica.CHUNK, request_id, payload, call.end.output_tokens)
            elif isinstance(response, ORJSONResponse):
                body = nested_error(orjson.loads(response.body), response.status_code)
                self._send(ToReplica.REFUSED, request_id, response.status_code, body)
                return
            else:
                payload = response.model_dump_json().encode()
                self._send(ToReplica.CHUNK, request_id, payload, call.end.output_tokens)
            self._send(ToReplica.ENDED, request_id, *call.end)
        except Exception as error:
            logger.exception("request %s failed in SGLang's OpenAI handler", request_id)
            body = openai_error(f"engine error: {error}", 500)
            self._send(ToReplica.REFUSED, request_id, 500, body)
        finally:
            self._prompts.calls.pop(request_id, None)


def _parse(endpoint: str, body: dict[str, Any], request_id: str, prompt_ids: list[int]) -> Any:
    if endpoint == "chat":
        # With ids given SGLang renders no template; the messages still decide stops and tools.
        return ChatCompletionRequest(**{**body, "rid": request_id, "input_ids": prompt_ids})
    # A text prompt stays for `echo`; the ids replace it on the way to the scheduler.
    prompt = body.get("prompt")
    shown = prompt if isinstance(prompt, str) and prompt else prompt_ids
    return CompletionRequest(**{**body, "rid": request_id, "prompt": shown})


def _validation_error(error: ValidationError) -> dict[str, Any]:
    first = error.errors(include_url=False, include_context=False)[0]
    path = field_path(first["loc"])
    return openai_error(
        f"{path}: {first['msg']}" if path else first["msg"], 400, param=path or None
    )


def _response_end(meta: dict[str, Any]) -> ResponseEnd:
    reason = meta.get("finish_reason")
    return ResponseEnd(
        meta.get("prompt_tokens", 0),
        meta.get("cached_tokens", 0),
        meta.get("completion_tokens", 0),
        isinstance(reason, dict) and reason.get("type") == "abort",
    )
