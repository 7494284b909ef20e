"""What the tests of the HTTP contract share: bodies, events, waiting, and an engine that is kept busy."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def chat(text: str = "Hi", **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": "simulated", "messages": messages, "max_tokens": 2, **more}


def completion(text: str = "Hi", **more: Any) -> dict[str, Any]:
    return {"model": "simulated", "prompt": text, "max_tokens": 2, **more}


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error object of a response that must have this status and OpenAI's error body."""
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def events(text: str) -> list[Any]:
    """Server-sent events in order; a comment as its line."""
    found: list[Any] = []
    for line in text.splitlines():
        if line.startswith(":"):
            found.append(line)
        elif line.startswith("data: "):
            found.append("[DONE]" if line == "data: [DONE]" else json.loads(line[6:]))
    return found


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def state(client: httpx.Client) -> dict[str, Any]:
    answer = client.get("/prism/state")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def idle(client: httpx.Client) -> bool:
    now = state(client)
    owed = sum(r["sent"] + r["not_prefilled"] + r["foreign"] for r in now["replicas"])
    return bool(now["waiting"] == now["sent"] == owed == 0)


@contextlib.contextmanager
def busy(client: httpx.Client, waiting: int = 0, max_tokens: int = 2000) -> Iterator[None]:
    """One request in an engine that runs one at a time, and ``waiting`` behind it; all leave at the end."""
    leave = threading.Event()

    def hold(number: int) -> None:
        body = chat(f"Hold {number}", stream=True, max_tokens=max_tokens)
        with (
            contextlib.suppress(httpx.HTTPError),
            httpx.Client(base_url=client.base_url, timeout=60) as own,
            own.stream("POST", CHAT, json=body) as response,
        ):
            for _ in response.iter_lines():
                if leave.is_set():
                    return

    def ticking(number: int) -> None:
        # A waiting request gets no bytes: its thread ends when the engine comes to it.
        hold(number)

    threads = [threading.Thread(target=ticking, args=(n,), daemon=True) for n in range(waiting + 1)]
    for number, thread in enumerate(threads):
        thread.start()
        wait_until(
            lambda n=number: state(client)["sent"] + state(client)["waiting"] > n,  # type: ignore[misc]
            "the engine did not get busy",
            timeout_s=30.0,
        )
    try:
        yield
    finally:
        leave.set()
        for thread in threads:
            thread.join(60)
        wait_until(lambda: idle(client), "books did not close")


class Samples:
    """The samples of one scrape, summed over the labels that are not asked for."""

    def __init__(self, client: httpx.Client) -> None:
        response = client.get("/metrics")
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/plain")
        families = list(text_string_to_metric_families(response.text))
        self.samples = [sample for family in families for sample in family.samples]

    def has(self, *names: str) -> bool:
        return {s.name for s in self.samples} >= set(names)

    def of(self, name: str, **labels: str) -> float:
        return sum(
            s.value for s in self.samples if s.name == name and labels.items() <= s.labels.items()
        )
