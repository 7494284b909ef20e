"""The live page of an application under load, as a person with a browser sees it.

``PRISM_SCREENSHOTS`` names a directory that keeps the pictures.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.browser import browser, complaints, needed_browser, screenshot, set_scheme

from .contract_tools import CHAT, idle, wait_until

pytestmark = pytest.mark.serve

CONFIG: dict[str, Any] = {
    "extends": "simulated",
    "replicas": {"count": 2, "max_running": 4, "num_cpus": 0.1},
    "placement": {"policy": "e2"},
    "engine": {"simulated": {"speed": 0.1, "pool_tokens": 16_000, "context_length": 8192}},
}
ATTACK = "<img src=x onerror=owned=1>"
LABELS = (ATTACK, "Seine", "Louvre", "leave policy", "refunds", "travel")


class Load:
    """Requests that share passages, faster than the engines can answer, until it is stopped."""

    def __init__(self, client: httpx.Client) -> None:
        self._url = client.base_url
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._client, args=(n,)) for n in range(16)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def _client(self, number: int) -> None:
        rng = random.Random(number)
        with httpx.Client(base_url=self._url, timeout=60) as client:
            while not self._stop.is_set():
                chosen = [ATTACK, *rng.sample(LABELS[1:], 2)]
                parts: list[dict[str, Any]] = [
                    {
                        "type": "text",
                        "text": f"{label}: " + f"what is known of {label}. " * 30,
                        "prism": {"segment": label, "reorderable": True},
                    }
                    for label in rng.sample(chosen, len(chosen))
                ]
                parts.append({"type": "text", "text": f"Question {rng.random()}?"})
                messages = [{"role": "user", "content": parts}]
                body = {"model": "simulated", "max_tokens": 16, "messages": messages}
                assert client.post(CHAT, json=body).status_code == 200


@pytest.fixture(scope="module")
def client(run_app: Callable[..., httpx.Client]) -> httpx.Client:
    needed_browser()
    return run_app(CONFIG)


@pytest.fixture
def load(client: httpx.Client) -> Iterator[Load]:
    with Load(client) as load:
        yield load
    wait_until(lambda: idle(client), "books did not close", 60.0)


def test_under_load_it_shows_what_happens_now(
    client: httpx.Client, load: Load, tmp_path: Path
) -> None:
    kept = Path(os.environ.get("PRISM_SCREENSHOTS") or tmp_path)
    with browser() as driver:
        driver.get(f"{client.base_url}/prism/?refresh=1")

        def shows(selector: str, count: int) -> bool:
            rows = f"return document.querySelectorAll('{selector}').length"
            return bool(driver.execute_script(rows) >= count)

        for selector, count in (
            (".replicas tbody tr", 2),
            (".segments tbody tr", 3),
            (".fronts tbody tr", 1),
            (".decisions tbody tr", 10),
            ("svg .line", 4),
        ):
            wait_until(lambda s=selector, n=count: shows(s, n), f"no {selector}", 30.0)  # type: ignore[misc]
        facts = "return document.querySelector('.facts').innerText"
        decided = driver.execute_script(facts)
        wait_until(lambda: driver.execute_script(facts) != decided, "it does not change", 20.0)
        text = driver.execute_script("return document.querySelector('main').innerText")
        for part in ("hot lane", "cold lane", "hit rate", ATTACK, "exact", "planned", "the oldest"):
            assert part in text, part
        assert driver.execute_script("return typeof owned") == "undefined"
        assert driver.execute_script("return document.querySelectorAll('img').length") == 0

        link = "return document.querySelector('.decisions a').href"
        explained = httpx.get(driver.execute_script(link))
        assert explained.status_code == 200
        assert explained.json()["reason"]

        time.sleep(1.5)
        assert complaints(driver) == []
        for scheme in ("light", "dark"):
            set_scheme(driver, scheme)
            screenshot(driver, kept / f"live-page-{scheme}.png")
            assert (kept / f"live-page-{scheme}.png").stat().st_size > 20_000
