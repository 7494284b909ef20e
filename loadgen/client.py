"""The HTTP clients that all measurements against a live server use: an open loop, and a closed one.

Open loop: a request is sent when its time has come, whatever became of the others, and its times
count from that moment. So a slow server shows as long times, never as fewer requests. Closed loop:
so many requests are under way, the next is sent when one has ended. Which requests and when is the
caller's; what the rows mean is ``rows``'.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence

import aiohttp

from loadgen.answer import Answer
from loadgen.rows import Outcome, PlannedRequest, RequestRow
from loadgen.sse import SseDecoder

OnRow = Callable[[RequestRow], None]

KEEP_ALIVE_S = 4.0
"""Idle connections are dropped before common servers do (5 s): a request that is sent on a connection
which the server is just closing would fail through nobody's fault."""

_TIMER_S = 0.0005
"""Half of what a timer is rounded to by uvloop: none should go off early, and be waited for again."""

_NO_USE = (401, 403, 404, 405)
_AGAIN_S = 0.2


class FlushFailed(RuntimeError):
    """The server did not empty its caches; the message says what it answered."""


def api_url(base_url: str) -> str:
    """``base_url`` with its ``/v1/``, which may be given or left out."""
    url = base_url.rstrip("/")
    return f"{url}/" if url.endswith("/v1") else f"{url}/v1/"


def open_client(base_url: str, *, api_key: str | None = None) -> aiohttp.ClientSession:
    """A client without a limit on connections: waiting for one would close the loop.

    It has no timeouts of its own (see ``OpenLoop``). Call it inside a running event loop.
    """
    return aiohttp.ClientSession(
        api_url(base_url),
        headers=_authorization(api_key),
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,  # a proxy found in the environment would be measured too
    )


class _Loop:
    """What both loops do with one request: exchange it for a row."""

    def __init__(
        self,
        client: aiohttp.ClientSession,
        *,
        timeout_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
        on_row: OnRow | None = None,
    ) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._clock = clock
        self._on_row = on_row
        self._start_s = 0.0

    def _now_s(self) -> float:
        return self._clock() - self._start_s

    async def _request(
        self, request: PlannedRequest, payload: bytes, index: int, due_s: float
    ) -> RequestRow:
        row = RequestRow(id=request.id or str(index), scheduled_s=due_s)
        row.streamed = bool(request.body.get("stream"))
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._exchange(request, payload, row)
        except TimeoutError as error:
            _lost(row, Outcome.TIMEOUT, str(error) or f"no end after {self._timeout_s} s")
        except (aiohttp.ClientError, OSError) as error:
            _lost(row, Outcome.CONNECTION if row.status is None else Outcome.TRUNCATED, error)
        if row.ended_s is None:
            row.ended_s = self._now_s()
        if self._on_row is not None:
            self._on_row(row)
        return row

    async def _exchange(self, request: PlannedRequest, payload: bytes, row: RequestRow) -> None:
        headers = {"content-type": "application/json", **request.headers}
        row.sent_s = self._now_s()
        async with self._client.post(request.path, data=payload, headers=headers) as response:
            row.headers_s = self._now_s()
            note_headers(row, response.status, response.headers)
            answer = Answer(row)
            if response.status >= 400:
                row.outcome = Outcome.REFUSED
                answer.error(_json_or_text(await response.read()))
            elif response.content_type == "text/event-stream":
                await self._read_stream(response, answer)
            else:
                answer.whole((await response.read()).decode(errors="replace"))

    async def _read_stream(self, response: aiohttp.ClientResponse, answer: Answer) -> None:
        decoder = SseDecoder()
        while piece := await response.content.readany():
            at_s = self._now_s()
            for event in decoder.feed(piece):
                answer.chunk(event.data, at_s)
                if answer.over:
                    break
            answer.row.comments = decoder.comments
            if answer.over:
                answer.row.ended_s = at_s
                await _drain(response)
                return
        answer.end_of_stream()


class OpenLoop(_Loop):
    """Sends planned requests at their times and keeps a row for each.

    ``clock`` gives monotonic seconds. A request that takes longer than ``timeout_s`` from its
    sending is given up. ``on_row`` is called as each row is complete.
    """

    async def run(
        self, requests: Sequence[PlannedRequest], *, start_s: float | None = None
    ) -> list[RequestRow]:
        """Send all, wait for all; rows in the order of ``requests``.

        ``start_s`` is the moment on ``clock`` that their times count from: now by default.
        """
        payloads = [encode(r) for r in requests]
        order = sorted(range(len(requests)), key=lambda i: requests[i].at_s)
        tasks: dict[int, asyncio.Task[RequestRow]] = {}
        self._start_s = self._clock() if start_s is None else start_s
        async with asyncio.TaskGroup() as group:
            for i in order:
                at_s = requests[i].at_s
                while (wait_s := at_s - self._now_s()) > 0:  # noqa: ASYNC110 - a clock has no event
                    await asyncio.sleep(wait_s + _TIMER_S)
                tasks[i] = group.create_task(self._request(requests[i], payloads[i], i, at_s))
        return [tasks[i].result() for i in range(len(requests))]


class ClosedLoop(_Loop):
    """Keeps ``concurrency`` requests under way; each is due when the one before it has ended.

    The requests' own times are not looked at. A closed loop slows down with its server, so its times
    say what so many patient clients see, and nothing of what waits at a given rate.
    """

    async def run(
        self,
        requests: Sequence[PlannedRequest],
        concurrency: int,
        *,
        start_s: float | None = None,
    ) -> list[RequestRow]:
        """Send all; rows in the order of ``requests``. ValueError for a concurrency below 1."""
        if concurrency < 1:
            raise ValueError(f"a closed loop needs at least one client, not {concurrency}")
        payloads = [encode(r) for r in requests]
        rows: dict[int, RequestRow] = {}
        todo = iter(range(len(requests)))
        self._start_s = self._clock() if start_s is None else start_s
        await asyncio.sleep(max(0.0, -self._now_s()))

        async def one_client() -> None:
            for i in todo:
                rows[i] = await self._request(requests[i], payloads[i], i, self._now_s())

        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(requests))):
                group.create_task(one_client())
        return [rows[i] for i in range(len(requests))]


def encode(request: PlannedRequest) -> bytes:
    """The body as it goes over the wire; encoded ahead, so that it delays nobody's sending."""
    return json.dumps(request.body, ensure_ascii=False).encode("utf-8", errors="surrogatepass")


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Read past [DONE] to the end of the body: only then can the connection be used again."""
    with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
        async with asyncio.timeout(1.0):
            while await response.content.readany():
                pass


def note_headers(row: RequestRow, status: int, headers: Mapping[str, str]) -> None:
    """What an answer's status and headers say of a request; names of headers in any case."""
    row.status = status
    row.retry_after = headers.get("retry-after")
    row.replica = headers.get("x-prism-replica")
    row.lane = headers.get("x-prism-lane")
    try:
        row.queue_ms = float(headers["x-prism-queue-ms"])
    except (KeyError, ValueError):
        row.queue_ms = None


def _lost(row: RequestRow, outcome: Outcome, error: object) -> None:
    row.outcome = outcome
    row.error_message = (
        f"{type(error).__name__}: {error}" if isinstance(error, Exception) else str(error)
    )


def _json_or_text(body: bytes) -> object:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace")


def _authorization(api_key: str | None) -> dict[str, str]:
    return {"authorization": f"Bearer {api_key}"} if api_key else {}


async def served_models(
    base_url: str, *, api_key: str | None = None, timeout_s: float = 10.0
) -> list[str]:
    """The names of the models that a server lists (``GET /v1/models``); none where it lists none."""
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with (
            aiohttp.ClientSession(headers=_authorization(api_key), timeout=timeout) as client,
            client.get(f"{api_url(base_url)}models") as response,
        ):
            listed = _json_or_text(await response.read())
    except (aiohttp.ClientError, OSError, TimeoutError):
        return []
    return model_names(listed)


def model_names(listed: object) -> list[str]:
    """The names in an answer of ``GET /v1/models``; none in whatever is none."""
    models = listed.get("data") if isinstance(listed, dict) else None
    ids = [m.get("id") for m in models if isinstance(m, dict)] if isinstance(models, list) else []
    return [i for i in ids if isinstance(i, str)]


def flush_url(base_url: str) -> str:
    """Where a server's caches are emptied: beside its ``/v1``."""
    return api_url(base_url).removesuffix("v1/") + "flush_cache"


async def flush_cache(
    base_url: str, *, api_key: str | None = None, timeout_s: float = 30.0, patience_s: float = 10.0
) -> None:
    """Empty the server's prefix caches (``POST /flush_cache``, beside ``/v1``), so that a run starts
    cold. FlushFailed if it does not.

    Engines refuse while a request is still leaving them, so a refusal (but for 404, 405 and missing
    rights) is taken as an answer only after ``patience_s``.
    """
    url = flush_url(base_url)
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    until_s = time.monotonic() + patience_s
    try:
        async with aiohttp.ClientSession(
            headers=_authorization(api_key), timeout=timeout
        ) as client:
            while True:
                async with client.post(url) as response:
                    status = response.status
                if status < 400:
                    return
                if status in _NO_USE or time.monotonic() >= until_s:
                    raise FlushFailed(f"{url} answered {status}")
                await asyncio.sleep(_AGAIN_S)
    except (aiohttp.ClientError, OSError) as error:
        raise FlushFailed(f"{url}: {error or type(error).__name__}") from error
