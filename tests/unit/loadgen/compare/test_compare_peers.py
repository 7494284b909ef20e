"""Programs beside SGLang: ContextPilot's answers become orders, routers get their command."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

import pytest
from aiohttp import ClientSession, web

from loadgen.bench.ports import free_ports
from loadgen.bench.servers import Server, router_is_installed, sglang_router
from loadgen.compare.contextpilot import ContextPilot, order_of
from loadgen.compare.native import ServerFailed
from loadgen.compare.router import program_path, router, router_command
from loadgen.compare.words import WordTokens
from loadgen.traces.zipf_hotspot import ZipfHotspot
from prism_ray.model import Atom, Segment, Skeleton


def test_an_answer_names_documents_and_an_order_names_slots() -> None:
    assert order_of([7, 3, 9], [9, 7, 3]) == (2, 0, 1)
    assert order_of([7, 3, 7], [7, 7, 3]) == (0, 2, 1)


@pytest.mark.parametrize("answer", [[7, 3], [7, 3, 8], [7, 3, 9, 9]])
def test_an_answer_with_other_documents_is_refused(answer: list[int]) -> None:
    with pytest.raises(ValueError, match="was asked for"):
        order_of([7, 3, 9], answer)


async def _reversing(request: web.Request) -> web.Response:
    contexts = (await request.json())["contexts"]
    return web.json_response({"reordered_contexts": [context[::-1] for context in contexts]})


async def _reset(request: web.Request) -> web.Response:
    return web.json_response({"status": "success"})


async def test_the_client_takes_the_order_that_the_server_gives() -> None:
    app = web.Application()
    app.router.add_post("/reorder", _reversing)
    app.router.add_post("/reset", _reset)
    runner = web.AppRunner(app)
    await runner.setup()
    (port,) = free_ports(1)
    await web.TCPSite(runner, "127.0.0.1", port).start()
    movable = next(islice(ZipfHotspot(0).skeletons(), 1))
    fixed = Skeleton(None, tuple(Segment(bytes([n]), 5) for n in range(3)), movable.gaps[:3], 4)
    try:
        pilot = ContextPilot(f"http://127.0.0.1:{port}", 0)
        async with ClientSession() as client:
            assert await pilot.order(client, movable) == movable.native_order[::-1]
            assert await pilot.order(client, fixed) == fixed.native_order
        assert pilot.reordered == 1
        await pilot.forget()
        assert pilot.reordered == 0
    finally:
        await runner.cleanup()


def test_a_router_gets_its_workers_and_ports() -> None:
    words = router_command("smg", "/bin/smg", ["http://a", "http://b"], [1, 2, 3])
    assert " ".join(words) == (
        "/bin/smg launch --worker-urls http://a http://b --policy cache_aware --host 127.0.0.1 "
        "--port 1 --prometheus-port 2 --health-check-port 3"
    )
    assert "--health-check-port" not in router_command("sglang-router", "/r", [], [1, 2, 3])


def _program(directory: Path, name: str, text: str = "#!/bin/sh\n") -> Path:
    path = directory / name
    directory.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_a_router_is_on_the_path_or_sglangs_beside_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, first = tmp_path / "venv", tmp_path / "path"
    own = _program(beside, "sglang-router")
    _program(beside, "smg")  # as the package sglang-router installs it: not the package smg's
    monkeypatch.setattr(sys, "executable", str(beside / "python"))
    monkeypatch.setenv("PATH", str(first))
    assert program_path("sglang-router") == str(own)
    with pytest.raises(ServerFailed, match="pip install smg"):
        program_path("smg")
    others = [_program(first, name) for name in ("sglang-router", "smg")]
    assert [program_path(path.name) for path in others] == [str(path) for path in others]


FAKE = """#!{python}
import http.server, sys
open({told!r}, "w").write(" ".join(sys.argv[1:]))

class Answers(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()

port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Answers).serve_forever()
"""


def test_the_bench_starts_the_same_program_with_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "told"
    program = _program(
        tmp_path / "bin", "sglang-router", FAKE.format(python=sys.executable, told=str(told))
    )
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    assert router_is_installed()
    with sglang_router([Server(4242, 0)]) as server:
        words = router_command(
            "sglang-router", str(program), ["http://127.0.0.1:4242"], [server.port, 7]
        )
        assert told.read_text().split()[:-1] == words[1:-1]  # but for the metrics' port


def test_prompts_of_words_are_read_back_as_their_ids(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = [f"{a}{b}{c}" for a in "bdfgk" for b in "aeiou" for c in "lmnprstvwxyzbdfgkjhcqaeio"]
    vocabulary = {f"Ġ{word}": number for number, word in enumerate(words)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({**vocabulary, "zz": len(words)}, "zz"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.save(str(tmp_path / "tokenizer.json"))
    tokens = WordTokens(tmp_path / "tokenizer.json")
    ids = tokens.prompt([Atom(b"a", 20), Atom(b"b", 30)])
    assert len(ids) == 50
    assert made.encode(tokens.text(ids)).ids == ids
    assert tokens.prompt([Atom(b"a", 20)]) == ids[:20]
    with pytest.raises(ValueError, match="does not read back"):
        tokens.text([0, len(words)])


async def test_a_router_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ServerFailed, match="pip install smg"):
        async with router("smg", ["http://127.0.0.1:1"]):
            pass
