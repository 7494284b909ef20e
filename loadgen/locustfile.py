"""A Locust file: Poisson, bursty or recorded arrivals at any OpenAI-compatible server.

    locust -f loadgen/locustfile.py --host http://127.0.0.1:8000 --source zipf_hotspot --rate 4 \
        --headless

Without ``--headless``: with Locust's web page. TTFT, ITL, TPOT and the generator's lateness are
Locust statistics beside the requests themselves; all times count from the scheduled arrival. One
process: ``prism-loadgen run`` is for rates above what it keeps.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser
from dataclasses import replace
from pathlib import Path
from typing import Any

import gevent
import requests
from click import ClickException
from locust import LoadTestShape, User, events, task
from locust.runners import MasterRunner, WorkerRunner

from loadgen.answer import Answer
from loadgen.arrival_queue import ArrivalQueue
from loadgen.arrivals import ARRIVALS
from loadgen.client import (
    api_url,
    encode,
    flush_url,
    model_names,
    note_headers,
)
from loadgen.metrics import summarize, table
from loadgen.prompts import STYLES, TEXTS
from loadgen.rows import Outcome, PlannedRequest, RequestRow, RunRecord
from loadgen.sources import OWN_TIMES, Wording, load_source, schedule, with_model
from loadgen.sse import SseDecoder

SPAWN_RATE_MAX = 100
"""Users a second; Locust warns of more."""
FLUSH_PATIENCE_S = 10.0
LEAD_S = 1.0
"""From the start of the test to the time that arrivals count from: the first users have to be there."""


class NotAnswered(Exception):
    """How a request failed, as Locust's failure statistics show it."""


class _Test:
    """What Locust's classes share, made anew by every start: the arrivals and when they count from."""

    queue = ArrivalQueue([])
    planned = False
    warm_up_requests = 0
    start_s = 0.0
    started_unix_s = 0.0

    @classmethod
    def now_s(cls) -> float:
        return time.monotonic() - cls.start_s

    @classmethod
    def from_s(cls) -> float:
        """When the first request after the warm-up is due."""
        later = cls.queue.requests[cls.warm_up_requests :]
        return later[0].at_s if later else 0.0


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def add_options(parser: ArgumentParser, **_: Any) -> None:
    add = parser.add_argument
    add("--source", default="zipf_hotspot", help="A trace, a trace file, or a file of requests")
    add("--arrivals", choices=[OWN_TIMES, *ARRIVALS], default="poisson", help="When they are due")
    add(
        "--rate",
        type=float,
        help="Requests a second; 1, or the file's own times where those are due",
    )
    add("--requests", type=int, default=200, help="The first so many of the source")
    add("--warm-up", type=float, default=0.0, help="Share of the requests, sent first, not counted")
    add("--flush", action="store_true", help="POST /flush_cache before each start")
    add("--seed", type=int, default=0, help="Of the arrivals")
    add("--trace-seed", type=int, default=0, help="Of a trace")
    add(
        "-o", "--option", action="append", default=[], help="NAME=VALUE of a trace; may be repeated"
    )
    add("--style", choices=STYLES, default="segments", help="How a trace's prompts are written")
    add("--texts", choices=TEXTS, default="real", help="A trace's own texts, or made ones")
    add("--model", default=None, help="Replaces the bodies' model; a trace's: the server's first")
    add("--max-tokens", type=int, help="Replaces their max_tokens")
    add("--ignore-eos", action="store_true", help="Ask for exactly a trace's output length")
    add("--api-key", default=None, env_var="OPENAI_API_KEY", is_secret=True, help="Bearer token")
    add("--timeout-s", type=float, default=600.0, help="Between two pieces of an answer")
    add("--rows-out", default="", help="Raw rows as JSON, as prism-loadgen run writes them")


@events.init.add_listener  # type: ignore[untyped-decorator]
def check_runner(environment: Any, **_: Any) -> None:
    if isinstance(environment.runner, MasterRunner | WorkerRunner):
        raise SystemExit("this Locust file is for one process; see prism-loadgen run --processes")


def plan(options: Any, host: str) -> None:
    """Arrivals as the options say, counting from soon. SystemExit where they cannot be had.

    What was left empty on the web page comes as an empty string.
    """
    wording = Wording(
        options.style,
        options.texts,
        options.ignore_eos,
        options.model or None,
        int(options.max_tokens) if options.max_tokens else None,
    )
    pairs = tuple(pair for pair in options.option if pair)
    try:
        source = load_source(
            options.source, options.requests, wording, seed=options.trace_seed, pairs=pairs
        )
        source = with_model(source, _served_models(host, options.api_key))
        planned = schedule(source.requests, options.arrivals, _rate(options), options.seed)
    except (ClickException, ValueError) as error:
        raise SystemExit(str(error)) from error
    if options.flush:
        _flush(host, options.api_key)
    # Rows are told apart by their ids, and a file's lines need not have one.
    _Test.queue = ArrivalQueue([replace(r, id=r.id or str(i)) for i, r in enumerate(planned)])
    _Test.warm_up_requests = int(options.warm_up * len(planned))
    _Test.planned = True
    _Test.start_s = time.monotonic() + LEAD_S
    _Test.started_unix_s = time.time() + LEAD_S


def _rate(options: Any) -> float | None:
    if options.rate:
        return float(options.rate)
    return None if options.arrivals == OWN_TIMES else 1.0


def _session(api_key: str | None) -> requests.Session:
    session = requests.Session()
    session.trust_env = False
    session.headers["content-type"] = "application/json"
    if api_key:
        session.headers["authorization"] = f"Bearer {api_key}"
    return session


def _served_models(host: str, api_key: str | None) -> list[str]:
    try:
        return model_names(_session(api_key).get(f"{api_url(host)}models", timeout=10).json())
    except requests.RequestException:
        return []


def _flush(host: str, api_key: str | None) -> None:
    """Empty the server's caches. SystemExit if it does not; busy engines are asked again."""
    until_s = time.monotonic() + FLUSH_PATIENCE_S
    while True:
        try:
            answer = _session(api_key).post(flush_url(host), timeout=30)
        except requests.RequestException as error:
            raise SystemExit(f"cannot flush the cache: {error}") from error
        if answer.ok:
            return
        if answer.status_code < 409 or time.monotonic() >= until_s:
            raise SystemExit(f"cannot flush the cache: {answer.status_code}")
        gevent.sleep(0.2)


@events.test_stop.add_listener  # type: ignore[untyped-decorator]
def summarise(environment: Any, **_: Any) -> None:
    options, queue = environment.parsed_options, _Test.queue
    print(table(summarize(queue.rows, from_s=_Test.from_s())))
    if options.rows_out:
        by_id = {row.id: row for row in queue.rows}
        done = [r for r in queue.requests if r.id in by_id]
        config = {
            "source": options.source,
            "base_url": environment.host,
            "arrivals": options.arrivals,
            "rate": _rate(options),
            "seed": options.seed,
            "flush": options.flush,
            "warm_up": options.warm_up,
            "warm_up_requests": _Test.warm_up_requests,
        }
        RunRecord.of(
            done, [by_id[r.id] for r in done], config=config, started_unix_s=_Test.started_unix_s
        ).write(Path(options.rows_out))


class ArrivalShape(LoadTestShape):  # type: ignore[misc]
    """As many users as the arrivals need: Locust asks every second; None ends the test."""

    def reset_time(self) -> None:
        """Locust's word that a test begins; the first tick comes before ``test_start``."""
        super().reset_time()
        _Test.queue, _Test.planned = ArrivalQueue([]), False
        environment = self.runner.environment
        plan(environment.parsed_options, environment.host)

    def tick(self) -> tuple[int, float] | None:
        if not _Test.planned:  # the server is being asked for its models, or flushed
            return 1, 1.0
        if _Test.queue.over:
            return None
        users = _Test.queue.users(_Test.now_s())
        return users, float(min(max(users - self.get_current_user_count(), 1), SPAWN_RATE_MAX))


class OpenAIUser(User):  # type: ignore[misc]
    """Takes the next request, waits until it is due, sends it, and tells Locust what came."""

    def on_start(self) -> None:
        self._session = _session(self.environment.parsed_options.api_key)

    @task  # type: ignore[untyped-decorator]
    def ask(self) -> None:
        request = _Test.queue.take()
        if request is None:
            gevent.sleep(0.2)  # until the shape has seen that all is over
            return
        payload = encode(request)
        row = RequestRow(request.id, request.at_s, streamed=bool(request.body.get("stream")))
        gevent.sleep(max(0.0, request.at_s - _Test.now_s()))
        try:
            self._exchange(request, payload, row)
        except requests.Timeout as error:
            row.outcome, row.error_message = Outcome.TIMEOUT, str(error)
        except requests.RequestException as error:
            row.outcome = Outcome.CONNECTION if row.status is None else Outcome.TRUNCATED
            row.error_message = str(error)
        row.ended_s = row.ended_s or _Test.now_s()
        _Test.queue.finish(row)
        if row.scheduled_s >= _Test.from_s():
            _tell(self.environment, row)

    def _exchange(self, request: PlannedRequest, payload: bytes, row: RequestRow) -> None:
        url = api_url(self.host or self.environment.host) + request.path
        timeout_s = self.environment.parsed_options.timeout_s
        row.sent_s = _Test.now_s()
        with self._session.post(
            url, data=payload, headers=dict(request.headers), stream=True, timeout=timeout_s
        ) as response:
            row.headers_s = _Test.now_s()
            note_headers(row, response.status_code, response.headers)
            answer = Answer(row)
            if response.status_code >= 400:
                row.outcome = Outcome.REFUSED
                answer.error(response.text)
            elif "text/event-stream" in response.headers.get("content-type", ""):
                _read_stream(response, answer)
            else:
                answer.whole(response.text)


def _read_stream(response: requests.Response, answer: Answer) -> None:
    decoder = SseDecoder()
    # Chunk by chunk as they come; without chunks only single bytes come at once.
    size = None if response.headers.get("transfer-encoding") == "chunked" else 1
    for piece in response.iter_content(size):
        at_s = _Test.now_s()
        for event in decoder.feed(piece):
            if not answer.over:
                answer.chunk(event.data, at_s)
        if answer.over:
            answer.row.ended_s = answer.row.ended_s or at_s
    answer.end_of_stream()


def _tell(environment: Any, row: RequestRow) -> None:
    """One request, its first token, the gaps between its tokens and its lateness, in milliseconds."""
    failed = (
        None if row.answered else NotAnswered(f"{row.outcome} {row.error_code or row.status or ''}")
    )
    fire = environment.events.request.fire

    def tell(kind: str, name: str, seconds: float | None, error: Exception | None = None) -> None:
        if seconds is not None:
            fire(
                request_type=kind,
                name=name,
                response_time=1000 * seconds,
                response_length=len(row.text) if name == "E2E" else 0,
                exception=error,
                context={},
            )

    tell("request", "E2E", row.latency_s, failed)
    if row.answered:
        tell("stream", "TTFT", row.ttft_s)
        tell("stream", "TPOT", row.tpot_s)
        for gap_s in row.gaps_s:
            tell("stream", "ITL", gap_s)
    tell("generator", "lateness", row.lateness_s)
