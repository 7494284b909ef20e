"""A client that does not read is given up after ``client_stall_s``, and harms nobody else meanwhile.

Only behind HAProxy: Serve's own Python proxy takes whatever an ingress writes, however slowly its
client reads.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from .contract_tools import CHAT, chat, idle, state, wait_until

pytestmark = [
    pytest.mark.serve,
    pytest.mark.skipif(
        os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") != "1", reason="Serve's own proxy reads ahead"
    ),
]

STALL_S = 2.0

CONFIG: dict[str, Any] = {
    "extends": "simulated",
    "replicas": {"max_running": 4},
    "engine": {
        "simulated": {"speed": 20.0, "context_length": 200_000, "pool_tokens": 800_000},
    },
    "limits": {"max_tokens": 150_000, "client_stall_s": STALL_S},
}


@pytest.fixture(scope="module")
def client(run_app: Callable[..., httpx.Client]) -> httpx.Client:
    return run_app(CONFIG)


def ask_and_read_nothing(port: int) -> socket.socket:
    """A streaming request for more tokens than all buffers on the way can hold."""
    body = json.dumps(chat("Talk", stream=True, max_tokens=100_000)).encode()
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(30)
    sock.connect(("127.0.0.1", port))
    sock.sendall(head.encode() + body)
    return sock


def stalls(client: httpx.Client) -> float:
    lines = client.get("/metrics").text.splitlines()
    counted = [
        line for line in lines if line.startswith('prism_aborts_total{reason="client_stall"')
    ]
    return float(counted[0].split()[-1]) if counted else 0.0


def test_a_client_that_does_not_read_is_given_up_and_its_slot_returns(client: httpx.Client) -> None:
    assert client.base_url.port is not None
    with ask_and_read_nothing(client.base_url.port) as sock:
        assert sock.recv(1).startswith(b"H")  # the answer has begun; nothing of it is read any more
        assert state(client)["sent"] == 1
        slowest = 0.0
        asked_s = time.monotonic()
        while not idle(client):
            assert time.monotonic() < asked_s + 60, "a client that does not read keeps its slot"
            before_s = time.monotonic()
            assert client.post(CHAT, json=chat()).status_code == 200
            slowest = max(slowest, time.monotonic() - before_s)
            time.sleep(0.2)
        seconds = time.monotonic() - asked_s
    print(f"given up after {seconds:.1f} s; the slowest other answer took {slowest:.2f} s")
    assert seconds > STALL_S
    wait_until(lambda: stalls(client) == 1, "the stall was not counted")


def test_a_client_that_reads_slowly_is_served_to_the_end(client: httpx.Client) -> None:
    """It takes something at least every ``client_stall_s``: that is no stall."""
    assert client.base_url.port is not None
    before = stalls(client)
    total = b""
    body = chat("Talk", stream=True, max_tokens=400)
    with client.stream("POST", CHAT, json=body) as response:
        for part in response.iter_raw():
            total += part
            if len(total) < 20_000:
                time.sleep(0.3)
    assert total.rstrip().endswith(b"data: [DONE]")
    assert stalls(client) == before
