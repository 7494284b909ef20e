"""The engine's process: starts SGLang's engine on the main thread and serves the replica's frames.

Run by ``EngineProcess``, as a module with two file descriptors. Everything that needs SGLang in the
request path happens here, in ``OpenAIService``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import warnings
from typing import Any

from prism_ray.engine.sglang_events import EVENTS_ADDRESS_VARIABLE, events_directory
from prism_ray.engine.sglang_process import die_with_children, die_with_parent
from prism_ray.engine.sglang_version import check_sglang_version
from prism_ray.engine.sglang_wire import (
    Frame,
    FrameSender,
    ToHost,
    ToReplica,
    encode,
    frames,
    read_frame,
)

logger = logging.getLogger(__name__)


def main(connection_fd: int, lifeline_fd: int) -> None:
    """Serve until the replica says stop or is gone."""
    die_with_parent(lifeline_fd, events_directory(os.environ[EVENTS_ADDRESS_VARIABLE]))
    connection = socket.socket(fileno=connection_fd)
    frame = read_frame(connection)
    if frame is None:
        return
    kind, arguments = frame
    assert kind == ToHost.START, f"{kind} before {ToHost.START}"
    warnings.filterwarnings("ignore", message="ORJSONResponse is deprecated")
    try:
        check_sglang_version()
        from sglang.srt.entrypoints.engine import Engine

        engine = Engine(**arguments)
        info = engine_info(engine)
    except Exception as error:
        logger.exception("the engine did not start")
        connection.sendall(encode(ToReplica.FAILED, f"{type(error).__name__}: {error}"))
        return
    asyncio.run(_serve(engine, connection, info))
    engine.shutdown()


async def _serve(engine: Any, connection: socket.socket, info: dict[str, Any]) -> None:
    from prism_ray.engine.sglang_openai import OpenAIService

    reader, writer = await asyncio.open_connection(sock=connection)
    sender = FrameSender(writer)
    manager = engine.tokenizer_manager
    manager.auto_create_handle_loop()
    die_with_children(engine.get_all_child_pids())
    info["max_running"] = await _max_running(manager)
    service = OpenAIService(manager, engine.template_manager, sender.send)
    side_tasks: set[asyncio.Task[None]] = set()
    sender.send(ToReplica.READY, info)
    async for frame in frames(reader):
        if frame[0] == ToHost.SUBMIT:
            await service.submit(*frame[1:])
        elif frame[0] == ToHost.ABORT:
            manager.abort_request(frame[1])
        elif frame[0] == ToHost.STOP:
            break
        else:
            task = asyncio.create_task(_answer_question(manager, sender, frame))
            side_tasks.add(task)
            task.add_done_callback(side_tasks.discard)
    sender.close()


async def _max_running(manager: Any) -> int:
    """What the scheduler settled for; it says so with its first snapshot, right after it is ready."""
    while True:
        snapshots = await manager.get_loads()
        # Where the scheduler is slow to write it, the first one is still all zeros.
        if snapshots and snapshots[0].max_running_requests > 0:
            return int(snapshots[0].max_running_requests)
        await asyncio.sleep(0.01)


async def _answer_question(manager: Any, sender: FrameSender, frame: Frame) -> None:
    kind, number = frame
    if kind == ToHost.LOAD:
        snapshots = await manager.get_loads()
        value: Any = snapshots[0].to_dict({"core"}) if snapshots else {}
    elif kind == ToHost.FLUSH:
        value = bool((await manager.flush_cache()).success)
    elif kind == ToHost.WAKE:
        # Any question will do: an idle scheduler sleeps until something reaches it.
        value = bool(await manager.get_internal_state())
    else:
        raise ValueError(f"unknown frame {kind}")
    sender.send(ToReplica.ANSWER, number, value)


def engine_info(engine: Any) -> dict[str, Any]:
    """The fields of EngineInfo but ``max_running``, as SGLang resolved them."""
    from sglang.srt.runtime_context import get_schedule

    manager = engine.tokenizer_manager
    scheduler = engine._scheduler_init_result.scheduler_infos[0]
    chunk = get_schedule().chunked_prefill_size
    return {
        "model": manager.served_model_name,
        "pool_tokens": scheduler["max_total_num_tokens"],
        "context_length": manager.context_len,
        "chunked_prefill_tokens": chunk if chunk and chunk > 0 else None,
        "max_prefill_tokens": get_schedule().max_prefill_tokens,
        "page_size": get_schedule().page_size,
    }


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
    # Nothing of SGLang's exit handlers is left to do, and some wait for processes that are gone.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
