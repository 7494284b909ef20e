"""Why a request went where it went: kept by the dispatcher, told by the actor, printed for people."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from click.testing import CliRunner

from prism_ray.cli import main

from .actor_bench import Bench, hello

DECIDED: dict[str, Any] = {
    "request_id": "ab12",
    "attempt": 0,
    "replica": "r1",
    "plan_version": 4,
    "position": 1,
    "lane": "hot",
    "score": 12.5,
    "reason": "hot lane: bucket of 3, score 12",
    "order": [1, 0],
    "queue_s": 0.25,
    "predicted_cached_tokens": 320,
    "age_s": 3.0,
    "placement": {"kind": "exploit", "numbers": {"load_s": 1.25, "holders": 2}},
}


@contextmanager
def application(answers: dict[str, tuple[int, Any]]) -> Iterator[str]:
    """An HTTP server that knows some requests."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            missing = 404, {"error": {"message": "No decision about it is remembered."}}
            status, body = answers.get(self.path.rpartition("/")[2], missing)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class TestCommand:
    def test_it_prints_the_rules_and_their_numbers(self) -> None:
        with application({"ab12": (200, DECIDED)}) as url:
            result = CliRunner().invoke(main, ["explain", "ab12", "--url", url])
        assert result.exit_code == 0, result.output
        for part in ("r1, plan 4", "order      1 0", "exploit", "load_s", "1.25", "bucket of 3"):
            assert part in result.output

    def test_a_request_that_is_not_known_is_one_line(self) -> None:
        with application({}) as url:
            result = CliRunner().invoke(main, ["explain", "nobody", "--url", url])
        assert result.exit_code == 1
        assert result.output == "Error: No decision about it is remembered.\n"

    def test_without_an_application_it_says_so(self) -> None:
        result = CliRunner().invoke(main, ["explain", "x", "--url", "http://127.0.0.1:1"])
        assert result.exit_code == 1
        assert "does not answer" in result.output


class TestActor:
    async def test_a_decision_of_e2_is_explained_with_what_it_compared(self) -> None:
        async with Bench(placement={"policy": "e2"}) as bench:
            await bench.actor.hello(hello("r"))
            await bench.submit("shared-1")
            found = await bench.actor.explain("shared-1")
        assert found is not None
        assert found["placement"]["kind"] == "explore"
        assert found["placement"]["numbers"]["missed_tokens"] == 60
        assert json.loads(json.dumps(found)) == found

    async def test_a_turn_is_explained_with_the_loads(self) -> None:
        async with Bench() as bench:
            await bench.actor.hello(hello("r"))
            await bench.submit("a")
            found = await bench.actor.explain("a")
            assert found is not None
            numbers = {"load_tokens": 0, "running": 0, "dispatched": 0}
            assert found["placement"] == {"kind": "least-loaded", "numbers": numbers}
            assert await bench.actor.explain("never") is None
