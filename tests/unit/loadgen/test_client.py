"""The open-loop client against a real server: schedule, times, and every way to fail."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import pytest

from loadgen.answer import Answer
from loadgen.client import (
    ClosedLoop,
    FlushFailed,
    OpenLoop,
    api_url,
    flush_cache,
    open_client,
    served_models,
)
from loadgen.rows import Outcome, PlannedRequest, RequestRow

from .conftest import PAUSE_S


def request(behaviour: str = "plain", at_s: float = 0.0, **fields: Any) -> PlannedRequest:
    body = {"stream": True, "messages": [{"role": "user", "content": behaviour}], **fields}
    return PlannedRequest(at_s, body, id=behaviour)


async def fire(url: str, *requests: PlannedRequest, timeout_s: float = 10.0) -> list[RequestRow]:
    async with open_client(url) as client:
        return await OpenLoop(client, timeout_s=timeout_s).run(requests)


async def test_an_answer_leaves_all_its_facts_in_the_row(peer: Any) -> None:
    (row,) = await fire(peer.url, request())
    assert (row.outcome, row.status, row.text, row.finish_reason) == (
        Outcome.ANSWERED,
        200,
        "Paris",
        "stop",
    )
    assert (row.prompt_tokens, row.cached_tokens, row.output_tokens) == (64, 32, 3)
    assert (row.replica, row.lane, row.queue_ms) == ("r0", "cold", 12.5)
    assert row.prism == peer.report
    assert len(row.chunk_s) == 3
    assert row.sent_s is not None
    assert row.headers_s is not None
    assert row.ended_s is not None
    assert row.scheduled_s <= row.sent_s <= row.headers_s <= row.chunk_s[0]
    assert row.chunk_s == sorted(row.chunk_s)
    assert row.chunk_s[-1] <= row.ended_s
    assert peer.bodies[0]["messages"][0]["content"] == "plain"


async def test_each_piece_has_the_time_at_which_it_was_read(
    peer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Acknowledging(Answer):
        def chunk(self, data: str, at_s: float) -> None:
            before = len(self.row.chunk_s)
            super().chunk(data, at_s)
            if len(self.row.chunk_s) > before:
                peer.taken.release()

    monkeypatch.setattr("loadgen.client.Answer", Acknowledging)
    (row,) = await fire(peer.url, request("in turn"))
    assert len(row.gaps_s) == 2
    assert min(row.gaps_s) > 0.9 * PAUSE_S  # it was not sent before


async def test_requests_leave_on_schedule_though_earlier_ones_are_not_answered(peer: Any) -> None:
    planned = [request("held", at_s=0.05 * i) for i in range(8)]
    async with open_client(peer.url) as client, asyncio.timeout(10):
        running = asyncio.create_task(OpenLoop(client).run(planned))
        while len(peer.bodies) < 8:  # noqa: ASYNC110 - they come in another thread
            await asyncio.sleep(0.005)
        peer.go.set()
        rows = await running
    last_sent_s = max(r.sent_s or 0.0 for r in rows)
    assert last_sent_s >= 0.35
    for row in rows:
        assert 0 <= (row.lateness_s or 0.0) < 0.9
        assert (row.ttft_s or 0.0) > last_sent_s - row.scheduled_s


async def test_ttft_includes_the_clients_own_lateness(peer: Any) -> None:
    busy_until_s = time.monotonic() + 0.7
    async with open_client(peer.url) as client:
        # busy while the second request is due, as a generator of many requests is
        loop = OpenLoop(
            client, on_row=lambda _: time.sleep(max(0, busy_until_s - time.monotonic()))
        )
        rows = await loop.run([request("plain"), request("plain", at_s=0.5)])
    late = max(rows, key=lambda r: r.lateness_s or 0.0)
    assert (late.lateness_s or 0.0) > 0.1
    assert (late.ttft_s or 0.0) > (late.lateness_s or 0.0)


async def test_rows_come_in_the_order_of_requests_not_of_arrivals(peer: Any) -> None:
    async with open_client(peer.url) as client:
        loop = OpenLoop(client, on_row=lambda _: peer.go.set())
        rows = await loop.run([request("held", at_s=0.1), request("plain")])
    assert [r.id for r in rows] == ["held", "plain"]
    assert [r.scheduled_s for r in rows] == [0.1, 0.0]


@pytest.mark.parametrize(
    ("behaviour", "outcome", "status", "code"),
    [
        ("full", Outcome.REFUSED, 429, "queue_full"),
        ("broken", Outcome.REFUSED, 500, None),
        ("cut", Outcome.TRUNCATED, 200, None),
        ("crash", Outcome.TRUNCATED, 200, None),
        ("error", Outcome.STREAM_ERROR, 200, "replica_died"),
    ],
)
async def test_each_failure_is_told_apart(
    peer: Any, behaviour: str, outcome: Outcome, status: int, code: str | None
) -> None:
    (row,) = await fire(peer.url, request(behaviour))
    assert (row.outcome, row.status, row.error_code) == (outcome, status, code)
    assert row.retry_after == ("3" if behaviour == "full" else None)
    assert row.ended_s is not None
    if outcome in (Outcome.TRUNCATED, Outcome.STREAM_ERROR):
        assert row.text == "Pa"  # what came before the failure is kept


async def test_a_timeout_is_no_connection_failure(peer: Any) -> None:
    (row,) = await fire(peer.url, request("held"), timeout_s=0.3)
    assert row.outcome is Outcome.TIMEOUT
    assert row.ended_s is not None
    assert 0.29 < row.ended_s < 5


async def test_nobody_listening_is_a_connection_failure() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        (row,) = await fire(f"http://127.0.0.1:{unused.getsockname()[1]}", request())
    assert (row.outcome, row.status) == (Outcome.CONNECTION, None)
    assert row.error_message


async def test_keepalive_comments_are_counted_and_delay_nothing(peer: Any) -> None:
    (row,) = await fire(peer.url, request("comments"))
    assert (row.outcome, row.comments) == (Outcome.ANSWERED, 2)


async def test_an_answer_that_is_not_streamed_has_no_ttft(peer: Any) -> None:
    (row,) = await fire(peer.url, request(stream=False))
    assert (row.outcome, row.text, row.cached_tokens) == (Outcome.ANSWERED, "Paris", 32)
    assert row.ttft_s is None
    assert row.latency_s is not None


async def test_connections_are_used_again(peer: Any) -> None:
    async with open_client(peer.url) as client:
        for _ in range(4):
            await OpenLoop(client).run([request()])
    assert len(peer.connections) == 1


async def test_each_row_is_reported_when_it_is_complete(peer: Any) -> None:
    seen: list[RequestRow] = []

    def on_row(row: RequestRow) -> None:
        seen.append(row)
        peer.go.set()

    async with open_client(peer.url) as client:
        rows = await OpenLoop(client, on_row=on_row).run([request("held"), request("plain")])
    assert seen == [rows[1], rows[0]]


@pytest.mark.parametrize("given", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_the_base_url_may_name_v1_or_not(given: str) -> None:
    assert api_url(given) == "http://h:1/v1/"


async def test_a_servers_models_are_asked_for_and_missed_where_it_lists_none(peer: Any) -> None:
    assert await served_models(peer.url) == ["tiny"]
    assert await served_models(f"{peer.url}/nowhere") == []
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert await served_models(f"http://127.0.0.1:{unused.getsockname()[1]}") == []


async def test_flushing_goes_beside_v1_and_says_if_it_failed(peer: Any) -> None:
    await flush_cache(f"{peer.url}/v1")
    assert peer.flushes == 1
    with pytest.raises(FlushFailed, match="404"):
        await flush_cache(f"{peer.url}/nowhere")


async def test_an_engine_that_is_still_working_is_asked_again_for_a_while(peer: Any) -> None:
    peer.busy_flushes = 2
    await flush_cache(peer.url)
    assert (peer.flushes, peer.busy_flushes) == (1, 0)
    peer.busy_flushes = 1000
    with pytest.raises(FlushFailed, match="409"):
        await flush_cache(peer.url, patience_s=0.3)


class TestClosedLoop:
    async def test_so_many_are_under_way_and_the_next_leaves_when_one_has_ended(
        self, peer: Any
    ) -> None:
        planned = [request(at_s=100.0, n=i) for i in range(9)]
        async with open_client(peer.url) as client:
            rows = await ClosedLoop(client).run(planned, 3)
        starts = [r.sent_s or 0.0 for r in rows]
        ends = sorted(r.ended_s or 0.0 for r in rows)
        assert all(r.answered for r in rows)
        assert [r.scheduled_s for r in rows] == sorted(r.scheduled_s for r in rows)
        for i, start_s in enumerate(starts):
            assert sum(end_s <= start_s for end_s in ends) >= i - 2  # never a fourth under way
        assert sum(start_s < ends[0] for start_s in starts) == 3
        assert {b["n"] for b in peer.bodies[:3]} == {0, 1, 2}

    async def test_it_waits_for_the_common_start(self, peer: Any) -> None:
        begun_s = time.monotonic()
        async with open_client(peer.url) as client:
            (row,) = await ClosedLoop(client).run([request()], 4, start_s=begun_s + 0.3)
        assert 0 <= row.scheduled_s < 0.3
        assert time.monotonic() - begun_s > 0.3

    async def test_nobody_is_no_closed_loop(self, peer: Any) -> None:
        async with open_client(peer.url) as client:
            with pytest.raises(ValueError, match="at least one"):
                await ClosedLoop(client).run([request()], 0)
