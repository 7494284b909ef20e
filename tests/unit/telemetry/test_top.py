"""``prism-ray top`` shows in a terminal what the page shows."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from click.testing import CliRunner

from prism_ray import top
from prism_ray.cli import main
from prism_ray.telemetry.live_page_text import columns_of, cut, fitted, sparkline, text
from prism_ray.telemetry.live_page_view import view_of

from .live_states import decision, several_tenants, state


@contextmanager
def application(body: Any, key: str | None = None) -> Iterator[tuple[str, list[str]]]:
    """An HTTP server with a state behind a key; its URL, and the paths that were asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            known = key is None or self.headers["Authorization"] == f"Bearer {key}"
            answer = body if known else {"error": {"message": "This API key is not known."}}
            self.send_response(200 if known else 401)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class TestText:
    @pytest.mark.parametrize("replicas", [1, 64])
    def test_it_shows_everything_that_the_page_shows(self, replicas: int) -> None:
        shown = " ".join(text(state(replicas), 400).split())
        view = view_of(state(replicas))
        for table in view.tables:
            assert table.title in shown
            for row in table.rows:
                assert " ".join(cell.text for cell in row) in shown
        for fact in view.facts:
            assert f"{fact.name} {fact.text}" in shown
        for chart in view.charts:
            assert chart.caption in shown

    def test_long_reasons_and_labels_give_way_to_the_width(self) -> None:
        long = state()
        long["decisions"] = [decision(reason="because " * 100)]
        long["window"]["segments"][0]["label"] = "字" * 64
        lines = text(long, 110).splitlines()
        tables = lines[next(n for n, line in enumerate(lines) if line.startswith("Hot segments")) :]
        assert max(map(columns_of, tables)) <= 110
        assert any("…" in line for line in tables)

    @pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (250, 200), (40, 3)])
    def test_a_window_gets_what_fits_of_every_table(self, width: int, height: int) -> None:
        lines = fitted(state(64), width, height).splitlines()
        assert len(lines) <= height
        assert max(map(columns_of, lines)) <= width
        if height >= 40:
            assert any(line.startswith("Last decisions") for line in lines)
        if height == 200:
            assert any("replica-63" in line for line in lines)
        else:
            assert "more" in "".join(lines) or height < 24

    def test_before_any_replica_joined_a_window_says_so(self) -> None:
        window = {"segments": [], "buckets": [], "lanes": {}}
        empty = state(0, window=window, decisions=[])
        assert "no replica has joined" in fitted(empty, 100, 40)

    def test_numbers_are_aligned(self) -> None:
        lines = text(state(), 200).splitlines()
        head = next(n for n, line in enumerate(lines) if line.startswith("Hot segments")) + 1
        ends = [line.index(word) + len(word) for line, word in zip(
            lines[head : head + 3], (" queued", " 21", " 2 "), strict=True
        )]  # fmt: skip
        assert ends[0] == ends[1] == ends[2] - 1

    def test_what_clients_name_cannot_steer_the_terminal(self) -> None:
        attacked = state()
        attacked["window"]["segments"][0]["label"] = "\x1b[2J\x07\r\nx"
        attacked["decisions"] = [decision(reason="\x9b31m")]
        assert all(c == "\n" or c.isprintable() for c in text(attacked))

    def test_of_several_tenants_no_decision_is_shown(self) -> None:
        shown = text(several_tenants())
        assert "Several tenants are known" in shown
        assert "Last decisions" not in shown

    def test_a_step_without_answers_is_a_dot(self) -> None:
        ttft, _ = view_of(state()).charts
        assert len(sparkline(ttft)) == 4
        assert sparkline(ttft)[0] == "·"
        assert sparkline(ttft)[2] == "█"

    def test_cutting_counts_columns_and_not_characters(self) -> None:
        assert cut("abcdef", 6) == "abcdef"
        assert cut("abcdef", 5) == "abcd…"
        assert cut("字字字", 5) == "字字…"


class TestCommand:
    def test_once_prints_once(self) -> None:
        with application(state(2)) as (url, asked):
            result = CliRunner().invoke(main, ["top", "--once", "--url", url + "/", "--rows", "7"])
        assert result.exit_code == 0, result.output
        assert "replica-01" in result.output
        assert asked == ["/prism/state?top=7"]

    def test_the_admin_key_comes_as_option_or_variable(self) -> None:
        with application(state(), key="secret") as (url, _):
            call = ["top", "--once", "--url", url]
            refused = CliRunner().invoke(main, call, env={"PRISM_ADMIN_KEY": ""})
            assert refused.exit_code == 1
            assert refused.output == "Error: This API key is not known.\n"
            for more, env in ((["--key", "secret"], {}), ([], {"PRISM_ADMIN_KEY": "secret"})):
                result = CliRunner().invoke(main, call + more, env=env)
                assert result.exit_code == 0, result.output

    def test_without_an_application_it_says_so(self) -> None:
        result = CliRunner().invoke(main, ["top", "--once", "--url", "http://127.0.0.1:1"])
        assert result.exit_code == 1
        assert "does not answer" in result.output
        with application({"hello": 1}) as (url, _):
            result = CliRunner().invoke(main, ["top", "--once", "--url", url])
        assert result.exit_code == 1
        assert "is no prism_ray application" in result.output

    def test_it_looks_again_until_it_is_interrupted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        waits: list[float] = []

        def wait(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 3:
                raise KeyboardInterrupt

        monkeypatch.setattr(top.time, "sleep", wait)
        with application(state()) as (url, asked):
            result = CliRunner().invoke(main, ["top", "--url", url, "--every", "0.5"])
        assert waits == [0.5] * 3
        assert len(asked) == 3
        assert result.output.count("prism_ray  policy qas") == 3
