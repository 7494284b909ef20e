"""SGLang's own HTTP server as a process: started with its own arguments, asked, flushed, ended.

Nothing of ours schedules, caches or listens in it. On a CPU it gets the attention backend that our
engines have too: SGLang's own one computes cached tokens again, so that no hit would be worth anything.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import aiohttp

from loadgen.bench.ports import free_ports
from loadgen.client import flush_cache
from loadgen.real.engines import NO_REFRESH
from prism_ray.engine.cpu.environment import cpu_environment

START_TIMEOUT_S = 900.0
_POLL_S = 0.25
_TAIL_BYTES = 2000
_LEASH = Path(__file__).with_name("leash.py")
NO_PLUGINS = {"SGLANG_PLUGINS": "none"}
"""SGLang loads the plugins that this names: none of ours, nor of anybody."""


class ServerFailed(RuntimeError):
    """A server did not start or went away; the message has the end of what it printed."""


@dataclass(frozen=True, slots=True)
class NativeServer:
    """A running server. ``limits``: what it says of its pool and batches."""

    base_url: str
    pid: int
    limits: Mapping[str, Any]

    async def flush(self) -> None:
        """Empty the cache. Raises FlushFailed."""
        await flush_cache(self.base_url)


def command_line(model: str, arguments: Mapping[str, Any], port: int) -> list[str]:
    """The command of a server: every ServerArgs field as its option."""
    words = [sys.executable, "-m", "sglang.launch_server", "--model-path", model]
    words += ["--host", "127.0.0.1", "--port", str(port)]
    for name, value in arguments.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            words.append(option)
        elif value is not False and value is not None:
            words += [option, str(value)]
    return words


@asynccontextmanager
async def native_server(
    model: str, arguments: Mapping[str, Any], *, cpu: bool, policy: str, refresh: bool = True
) -> AsyncIterator[NativeServer]:
    """SGLang's server under one of its schedule policies; ended when the context ends.

    Raises ServerFailed if it does not come up.
    """
    (port,) = free_ports(1)
    # A cache report changes what is told of a request, not what becomes of it.
    options = {**arguments, "schedule_policy": policy, "enable_cache_report": True}
    variables = {**os.environ, **(cpu_environment() if cpu else NO_PLUGINS)}
    variables |= {} if refresh else NO_REFRESH
    with TemporaryFile() as log:
        async with running(command_line(model, options, port), variables, log) as process:
            url = f"http://127.0.0.1:{port}"
            await until_healthy(url, process, log)
            yield NativeServer(url, process.pid, await _limits(url))


@asynccontextmanager
async def running(
    command: Sequence[str], environment: Mapping[str, str], log: IO[bytes]
) -> AsyncIterator[subprocess.Popen[bytes]]:
    """A command in a process group of its own that does not outlive this process."""
    process, lifeline_write = await asyncio.to_thread(_spawn, command, environment, log)
    try:
        yield process
    finally:
        os.close(lifeline_write)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.to_thread(process.wait)


def _spawn(
    command: Sequence[str], environment: Mapping[str, str], log: IO[bytes]
) -> tuple[subprocess.Popen[bytes], int]:
    """The process, and the pipe's end that keeps it alive while it is open."""
    lifeline_read, lifeline_write = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, str(_LEASH), str(lifeline_read), *command],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(lifeline_read,),
            start_new_session=True,
        )
    except BaseException:
        os.close(lifeline_write)
        raise
    finally:
        os.close(lifeline_read)
    return process, lifeline_write


async def until_healthy(
    url: str, process: subprocess.Popen[bytes], log: IO[bytes], path: str = "/health"
) -> None:
    """Wait until a server answers 200. Raises ServerFailed with the end of its log."""
    until_s = time.monotonic() + START_TIMEOUT_S
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(timeout=timeout) as client:
        while process.poll() is None and time.monotonic() < until_s:
            with suppress(aiohttp.ClientError, TimeoutError, OSError):
                async with client.get(url + path) as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(_POLL_S)
    raise ServerFailed(f"{url} did not come up: {_tail(log)}")


def _tail(log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - _TAIL_BYTES))
    return log.read().decode(errors="replace")


async def _limits(url: str) -> dict[str, Any]:
    async with aiohttp.ClientSession() as client, client.get(f"{url}/server_info") as response:
        response.raise_for_status()
        info = await response.json()
    state = (info.get("internal_states") or [{}])[0]
    return {
        "pool_tokens": info["max_total_num_tokens"],
        "chunked_prefill_tokens": info["chunked_prefill_size"],
        "max_running": state.get("effective_max_running_requests_per_dp")
        or info["max_running_requests"],
        "page_size": info["page_size"],
    }
