"""An open-loop client of SGLang's ``/generate``: prompts as token ids, answers token by token.

Its times are a client's: from the scheduled arrival to the moment at which a part is here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from loadgen.sse import SseDecoder

TIMEOUT_S = 1200.0


Ask = Callable[[aiohttp.ClientSession], Awaitable[Sequence[int]]]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request: due ``arrival_s`` seconds after the run begins, so many tokens to generate.

    ``ask`` is called as it arrives and says which ids, as many, are sent in place of ``token_ids``;
    ``text`` is sent in their place where it is not empty.
    """

    request_id: str
    arrival_s: float
    token_ids: Sequence[int]
    output_tokens: int
    ask: Ask | None = None
    text: str = ""


@dataclass(slots=True)
class Row:
    """What a client saw of a request; seconds since the run began, None for what never came."""

    request_id: str
    arrival_s: float
    prompt_tokens: int
    sent_s: float = 0.0
    first_chunk_s: float | None = None
    finished_s: float | None = None
    cached_tokens: int | None = None
    output_tokens: int = 0
    error: str = ""


async def serve(base_url: str, prompts: Sequence[Prompt]) -> list[Row]:
    """Send every prompt at its time, whatever became of the others, and wait for the last answer."""
    loop = asyncio.get_running_loop()
    # Bodies are made ahead: the client must not be late for its own work.
    bodies = [_body(prompt, prompt.token_ids) for prompt in prompts]
    rows = [Row(p.request_id, p.arrival_s, len(p.token_ids)) for p in prompts]
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as client:
        start_s = loop.time()

        async def one(prompt: Prompt, body: bytes, row: Row) -> None:
            try:
                if prompt.ask is not None:
                    body = _body(prompt, await prompt.ask(client))
                await _exchange(client, base_url, body, row, start_s)
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                row.error = f"{type(error).__name__}: {error}"

        async with asyncio.TaskGroup() as group:
            for number in sorted(range(len(rows)), key=lambda n: rows[n].arrival_s):
                await asyncio.sleep(rows[number].arrival_s - (loop.time() - start_s))
                rows[number].sent_s = loop.time() - start_s
                group.create_task(one(prompts[number], bodies[number], rows[number]))
    return rows


def _body(prompt: Prompt, token_ids: Sequence[int]) -> bytes:
    sampling = {
        "max_new_tokens": prompt.output_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
    }
    words = {"text": prompt.text} if prompt.text else {"input_ids": list(token_ids)}
    body = {**words, "sampling_params": sampling, "stream": True}
    return json.dumps(body).encode()


async def _exchange(
    client: aiohttp.ClientSession, base_url: str, body: bytes, row: Row, start_s: float
) -> None:
    loop = asyncio.get_running_loop()
    headers = {"content-type": "application/json"}
    async with client.post(f"{base_url}/generate", data=body, headers=headers) as response:
        if response.status != 200:
            row.error = f"{response.status}: {(await response.text())[:300]}"
            return
        decoder = SseDecoder()
        while piece := await response.content.readany():
            at_s = loop.time() - start_s
            for event in decoder.feed(piece):
                if event.data == "[DONE]":
                    row.finished_s = at_s
                else:
                    _part(row, json.loads(event.data), at_s)


def _part(row: Row, part: dict[str, Any], at_s: float) -> None:
    if error := part.get("error"):
        row.error = str(error)
        return
    meta = part["meta_info"]
    row.cached_tokens, row.output_tokens = meta["cached_tokens"], meta["completion_tokens"]
    if meta["prompt_tokens"] != row.prompt_tokens:
        row.error = f"the server read {meta['prompt_tokens']} tokens, not {row.prompt_tokens}"
    if row.first_chunk_s is None and row.output_tokens:
        row.first_chunk_s = at_s
