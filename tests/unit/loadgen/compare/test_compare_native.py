"""The client of SGLang's server, its command line, and that no server outlives who started it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryFile

import pytest
from aiohttp import web

from loadgen.bench.ports import free_ports
from loadgen.compare import native
from loadgen.compare.generate import Prompt, Row, serve
from loadgen.compare.native import ServerFailed, command_line, running, until_healthy

PART = '{"meta_info": {"cached_tokens": 7, "completion_tokens": %d, "prompt_tokens": %d}}'


async def _generate(request: web.Request) -> web.StreamResponse:
    """Two parts: one before there is a token, one with both tokens. A prompt of one id is refused."""
    asked = await request.json()
    if text := asked.get("text"):
        asked["input_ids"] = text.split()
    if len(asked["input_ids"]) == 1:
        return web.Response(status=400, text="too short")
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    if asked["input_ids"] == [9, 9]:
        await response.write(b'data: {"error": {"message": "out of memory"}}\n\n')
        return response
    length = len(asked["input_ids"])
    await response.write(f"data: {PART % (0, length)}\n\n".encode())
    await asyncio.sleep(0.05)
    await response.write(f"data: {PART % (2, length)}\n\ndata: [DONE]\n\n".encode())
    return response


async def _served(prompts: list[Prompt]) -> list[Row]:
    app = web.Application()
    app.router.add_post("/generate", _generate)
    runner = web.AppRunner(app)
    await runner.setup()
    (port,) = free_ports(1)
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        return list(await serve(f"http://127.0.0.1:{port}", prompts))
    finally:
        await runner.cleanup()


async def test_the_first_token_counts_from_the_part_that_has_one() -> None:
    (row,) = await _served([Prompt("a", 0.05, [1, 2, 3], 2)])
    assert row.sent_s >= 0.049
    assert row.first_chunk_s - row.sent_s >= 0.045
    assert row.finished_s >= row.first_chunk_s
    assert (row.cached_tokens, row.output_tokens, row.prompt_tokens) == (7, 2, 3)
    assert not row.error


async def test_a_text_that_is_read_as_other_tokens_is_an_error() -> None:
    same, other = await _served(
        [
            Prompt("a", 0.0, [1, 2, 3], 2, text="one two three"),
            Prompt("b", 0.0, [1, 2, 3], 2, text="one two"),
        ]
    )
    assert not same.error
    assert other.error == "the server read 2 tokens, not 3"


async def test_rows_come_in_the_order_of_the_prompts_and_failures_say_why() -> None:
    refused, late, broken = await _served(
        [Prompt("a", 0.1, [1], 2), Prompt("b", 0.0, [1, 2], 2), Prompt("c", 0.0, [9, 9], 2)]
    )
    assert refused.error == "400: too short"
    assert refused.first_chunk_s is None
    assert late.request_id == "b"
    assert not late.error
    assert "out of memory" in broken.error


async def test_a_server_that_is_not_there_is_an_error_of_the_row() -> None:
    (port,) = free_ports(1)
    (row,) = await serve(f"http://127.0.0.1:{port}", [Prompt("a", 0.0, [1, 2], 2)])
    assert "Cannot connect" in row.error


def test_every_argument_of_the_server_becomes_its_option() -> None:
    arguments = {"max_total_tokens": 5000, "sleep_on_idle": True, "skip": False, "none": None}
    words = command_line("/models/m", arguments, 4242)
    assert words[:3] == [sys.executable, "-m", "sglang.launch_server"]
    assert words[-3:] == ["--max-total-tokens", "5000", "--sleep-on-idle"]
    assert "--model-path /models/m --host 127.0.0.1 --port 4242" in " ".join(words)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return state[state.rindex(")") + 2] != "Z"


SLEEPER = "import time, os; print(os.getpid(), flush=True); time.sleep(600)"


async def test_a_command_ends_with_its_context() -> None:
    with TemporaryFile() as log:
        async with running([sys.executable, "-c", SLEEPER], os.environ, log):
            pid = await _printed_pid(log)
            assert _alive(pid)
        assert await _gone(pid)


async def _printed_pid(log: object) -> int:
    for _ in range(400):
        log.seek(0)  # type: ignore[attr-defined]
        if text := log.read().strip():  # type: ignore[attr-defined]
            return int(text)
        await asyncio.sleep(0.05)
    raise AssertionError("the command printed nothing")


async def _gone(pid: int) -> bool:
    for _ in range(200):
        if not _alive(pid):
            return True
        await asyncio.sleep(0.05)
    return False


def test_a_command_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    out = tmp_path / "pid"
    parent = subprocess.Popen([sys.executable, "-c", PARENT % (SLEEPER, str(out))])
    try:
        until_s = time.monotonic() + 20
        while not (out.exists() and out.read_text().strip()) and time.monotonic() < until_s:
            time.sleep(0.05)
        pid = int(out.read_text())
    finally:
        parent.kill()
        parent.wait()
    assert asyncio.run(_gone(pid))


PARENT = """
import asyncio, os, sys
from loadgen.compare.native import running

SLEEPER, OUT = %r, %r

async def keep():
    with open(OUT, "wb") as log:
        async with running([sys.executable, "-c", SLEEPER], os.environ, log):
            await asyncio.sleep(600)

asyncio.run(keep())
"""


async def test_a_server_that_ends_at_once_is_named_with_its_last_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native, "_POLL_S", 0.01)
    command = [sys.executable, "-c", "print('no such model'); raise SystemExit(3)"]
    with TemporaryFile() as log:
        async with running(command, os.environ, log) as process:
            with pytest.raises(ServerFailed, match="no such model"):
                await until_healthy("http://127.0.0.1:9", process, log)
