"""Builds the wheel, installs its base into an empty environment, serves one request from it, and runs
the tests of the policies and of the simulated engine there.

Run by ``make wheel-test``: not a pytest module, since it installs packages for minutes. What must
work without SGLang, without a checkout and without any file of ours but the wheel is shown here.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PORT = 8000  # `serve run` of an import path takes no other
BASE = f"http://127.0.0.1:{PORT}"
ROOMS = ("qas", "prism", "baselines", "dart", "engine", "dispatch", "placement")
"""What the base runs by itself; the tests of these rooms need none of the extras, either."""
TEST_PACKAGES = ("pytest", "pytest-asyncio", "pytest-timeout", "hypothesis", "psutil")
READY_TIMEOUT_S = 240
STOP_TIMEOUT_S = 60


def main() -> None:
    if port_taken():
        sys.exit(f"port {PORT} is taken; stop what listens there and run this again")
    work = Path(tempfile.mkdtemp(prefix="prism-wheel-"))
    try:
        wheel = build_wheel(work)
        binaries = install(wheel, work / "venv")
        check_installed(binaries, work)
        start_without_sglang(binaries, work)
        serve_one_request(binaries, work)
        run_tests(binaries, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print("wheel smoke: ok")


def build_wheel(work: Path) -> Path:
    run([sys.executable, "-m", "build", "--wheel", "--outdir", str(work / "dist"), str(ROOT)])
    (wheel,) = (work / "dist").glob("prism_ray-*.whl")
    return wheel


def install(wheel: Path, environment: Path) -> Path:
    venv.create(environment, with_pip=True)
    binaries = environment / "bin"
    run([str(binaries / "python"), "-m", "pip", "install", "--quiet", str(wheel)])
    return binaries


def check_installed(binaries: Path, work: Path) -> None:
    """The base is light, and its presets are inside."""
    probe = "import importlib.util as u; print([m for m in ('torch', 'sglang') if u.find_spec(m)])"
    heavy = run([str(binaries / "python"), "-c", probe], cwd=empty(work)).strip()
    if heavy != "[]":
        sys.exit(f"the base install brings {heavy}")
    shipped = "from prism_ray.engine_args import model_config as m; print(m('Qwen/Qwen3-4B-Instruct-2507'))"
    if "hidden_size" not in run([str(binaries / "python"), "-c", shipped], cwd=empty(work)):
        sys.exit("the wheel lacks the models' dimensions")
    presets = ["a800-qwen3-4b", "a800-llama2-13b", "cpu-smollm2", "simulated"]
    print(run([str(binaries / "prism-ray"), "validate", *presets], cwd=empty(work)))


def start_without_sglang(binaries: Path, work: Path) -> None:
    """What is served by default needs the extra, and the only error says how to get it."""
    command = [str(binaries / "serve"), "run", "prism_ray.app"]
    environment = serve_environment(binaries)
    done = subprocess.run(
        command, cwd=empty(work), env=environment, text=True, capture_output=True, check=False
    )
    if done.returncode == 0 or 'pip install "prism-ray[sglang]"' not in done.stderr:
        sys.exit(f"a start without SGLang ended with {done.returncode}\n{done.stderr[-4000:]}")


def serve_environment(binaries: Path) -> dict[str, str]:
    environment = {
        **os.environ,
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
        "RAY_SERVE_DEFAULT_HTTP_HOST": "127.0.0.1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    for name in ("RAY_ADDRESS", "PYTHONPATH"):
        environment.pop(name, None)
    return environment


def serve_one_request(binaries: Path, work: Path) -> None:
    log_path = work / "serve.log"
    ray_dir = tempfile.mkdtemp(prefix="pr-", dir="/tmp")  # short: Ray puts unix sockets below it
    environment = serve_environment(binaries) | {"RAY_TMPDIR": ray_dir}
    with log_path.open("w") as log:
        server = subprocess.Popen(
            [str(binaries / "serve"), "run", "prism_ray.app", "config=simulated"],
            cwd=empty(work),
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_ready(server)
        answer = chat("What is served here?")
        assert answer["choices"][0]["message"]["content"], answer
        assert answer["usage"]["prompt_tokens"] > 0, answer
        print("answered:", json.dumps(answer["usage"]))
    except BaseException:
        print(log_path.read_text()[-8000:], file=sys.stderr)
        raise
    finally:
        stop(server)
        shutil.rmtree(ray_dir, ignore_errors=True)


def run_tests(binaries: Path, work: Path) -> None:
    """With the tests alone beside the wheel: what they import is what was installed."""
    python = str(binaries / "python")
    run([python, "-m", "pip", "install", "--quiet", *TEST_PACKAGES])
    checkout = work / "checkout"
    shutil.copytree(ROOT / "tests", checkout / "tests")
    shutil.copy(ROOT / "pyproject.toml", checkout)
    rooms = [f"tests/unit/{room}" for room in ROOMS]
    output = run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *rooms], cwd=checkout)
    print("tests of the base:", output.splitlines()[-1])


def wait_ready(server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"serve run ended with status {server.returncode}")
        try:
            with urllib.request.urlopen(f"{BASE}/ready", timeout=5) as reply:
                if reply.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(1)
    raise RuntimeError(f"not ready within {READY_TIMEOUT_S} s")


def chat(question: str) -> Any:
    body = {
        "model": "simulated",
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 8,
    }
    request = urllib.request.Request(
        f"{BASE}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


def stop(server: subprocess.Popen[bytes]) -> None:
    """Interrupt our server as a person would; end what is left of its own session."""
    if server.poll() is None:
        server.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(STOP_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):  # gone if it ended cleanly
        os.killpg(server.pid, signal.SIGKILL)  # the session that it alone leads
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while port_taken() and time.monotonic() < deadline:
        time.sleep(1)
    if port_taken():
        sys.exit(f"something still listens on port {PORT} after the server was stopped")


def port_taken() -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", PORT)) == 0


def empty(work: Path) -> Path:
    directory = work / "empty"
    directory.mkdir(exist_ok=True)
    return directory


def run(command: list[str], cwd: Path | None = None) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    result = subprocess.run(
        command, cwd=cwd, env=environment, text=True, stdout=subprocess.PIPE, check=False
    )
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {result.returncode}\n{result.stdout[-4000:]}")
    return result.stdout


if __name__ == "__main__":
    main()
