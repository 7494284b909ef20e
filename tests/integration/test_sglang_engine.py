"""The real SGLang engine on a CPU, one for the whole module: answers, events, order, aborts, death."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from prism_ray.engine.base import (
    EngineCall,
    EngineDied,
    EngineRefused,
    Finished,
    PrefillEnded,
    PrefillStarted,
)
from prism_ray.model import Outcome

from .engine_driver import (
    FULL_LIFE,
    POOL_TOKENS,
    Driver,
    all_of,
    call,
    chat,
    completion,
    some_ids,
    tiny_engine,
)

pytestmark = [pytest.mark.real_engine, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def driver(random_tiny: Path) -> AsyncIterator[Driver]:
    engine = tiny_engine(random_tiny)
    info = await engine.start()
    yield Driver(engine, info)
    await engine.stop()


async def test_the_engine_says_what_it_can_hold(driver: Driver) -> None:
    info = driver.info
    assert (info.pool_tokens, info.context_length) == (POOL_TOKENS, 4096)
    assert (info.max_running, info.chunked_prefill_tokens, info.page_size) == (8, 512, 1)


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
async def test_one_answer_has_the_tokens_of_the_given_ids(driver: Driver, endpoint: str) -> None:
    body = chat() if endpoint == "chat" else completion()
    made = call(endpoint, body, some_ids(200, seed=len(endpoint)))
    (chunk,) = await driver.answer(made)
    usage = chunk.payload["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], chunk.tokens) == (200, 4, 4)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert chunk.payload["id"] == made.request_id


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
async def test_a_stream_carries_every_token_once_and_usage_if_asked(
    driver: Driver, endpoint: str
) -> None:
    body = chat(6) if endpoint == "chat" else completion(6)
    body |= {"stream": True, "temperature": 0}
    ids = some_ids(90, seed=30 + len(endpoint))
    chunks = await driver.answer(call(endpoint, body, ids))
    with_usage = await driver.answer(
        call(endpoint, {**body, "stream_options": {"include_usage": True}}, ids)
    )
    assert sum(chunk.tokens for chunk in chunks) == 6
    assert not any(chunk.payload.get("usage") for chunk in chunks)
    usage = with_usage[-1].payload["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 89
    (whole,) = await driver.answer(call(endpoint, {**body, "stream": False}, ids))
    choice = whole.payload["choices"][0]
    text = choice["message"]["content"] if endpoint == "chat" else choice["text"]
    assert "".join(_delta(chunk.payload) for chunk in chunks) == text


def _delta(payload: dict) -> str:
    choices = payload["choices"]
    if not choices:
        return ""
    return choices[0].get("text") or choices[0].get("delta", {}).get("content") or ""


async def test_events_tell_a_requests_life_in_order_with_what_was_cached(driver: Driver) -> None:
    ids = some_ids(300, seed=1)
    before = time.monotonic()
    cold, warm = call("chat", chat(), ids), call("chat", chat(), [*ids[:250], 7, 8, 9])
    for made in (cold, warm):
        await driver.answer(made)
        await driver.finished(made)
        assert driver.kinds(made) == FULL_LIFE
    start = await driver.started(warm)
    assert (start.prompt_tokens, start.cached_tokens) == (253, 250)
    finish = await driver.finished(warm)
    assert (finish.outcome, finish.cached_tokens, finish.output_tokens) == (
        Outcome.FINISHED,
        250,
        4,
    )
    times = [event.at_s for event in driver.log if event.request_id == warm.request_id]
    assert before < times[0] <= times[1] <= times[2] < time.monotonic()


async def test_a_prompt_of_several_chunks_ends_its_prefill_once(driver: Driver) -> None:
    made = call("completions", completion(1), some_ids(1300, seed=2))
    await driver.answer(made)
    await driver.finished(made)
    assert driver.kinds(made) == FULL_LIFE


async def test_the_echoed_prompt_is_the_clients_text(driver: Driver) -> None:
    made = call("completions", completion(1, echo=True), some_ids(20, seed=3))
    (chunk,) = await driver.answer(made)
    assert chunk.payload["choices"][0]["text"].startswith("shown")


async def test_submissions_enter_the_engine_in_the_order_of_their_calls(driver: Driver) -> None:
    made = [call("chat", chat(2), some_ids(20 + i % 7, seed=1000 + i)) for i in range(200)]
    assert await _admissions(driver, made) == [one.request_id for one in made]
    finishes = [e.request_id for e in driver.log if isinstance(e, Finished)]
    assert sorted(set(finishes) & {one.request_id for one in made}) == sorted(
        one.request_id for one in made
    )


async def test_a_body_that_is_slow_to_convert_is_not_overtaken(driver: Driver) -> None:
    function = {"name": "tool", "parameters": {"type": "object"}}
    tools = [{"type": "function", "function": {**function, "name": f"t{i}"}} for i in range(2000)]
    bodies = [chat(2, tools=tools), *[chat(2)] * 5]
    made = [call("chat", bodies[i % 6], some_ids(20, seed=2000 + i)) for i in range(24)]
    assert await _admissions(driver, made) == [one.request_id for one in made]


async def _admissions(driver: Driver, made: list[EngineCall]) -> list[str]:
    """Submit all at once; the order in which SGLang's scheduler admitted them."""
    streams = await asyncio.gather(*(driver.engine.submit(one) for one in made))
    await asyncio.gather(*(all_of(stream) for stream in streams))
    for one in made:
        await driver.finished(one)
    ours = {one.request_id for one in made}
    return [
        e.request_id for e in driver.log if isinstance(e, PrefillStarted) and e.request_id in ours
    ]


async def test_a_running_request_that_is_aborted_gives_its_tokens_back(driver: Driver) -> None:
    made = call("chat", chat(3000, stream=True), some_ids(400, seed=4))
    stream = await driver.engine.submit(made)
    first = await anext(stream)
    assert first.payload["choices"][0]["delta"]["role"] == "assistant"
    await driver.started(made)
    await driver.engine.abort(made.request_id)
    rest = await asyncio.wait_for(all_of(stream), 60)
    assert rest[-1].payload["choices"][0]["finish_reason"] == "abort"
    assert (await driver.finished(made)).outcome is Outcome.ABORTED
    assert await driver.idle_pool_tokens() == 0


async def test_a_queued_request_that_is_aborted_never_starts(driver: Driver) -> None:
    running = [call("chat", chat(600, stream=True), some_ids(30, seed=50 + i)) for i in range(8)]
    streams = [await driver.engine.submit(one) for one in running]
    for one in running:
        await driver.started(one)
    queued = call("chat", chat(), some_ids(30, seed=5))
    waiting = await driver.engine.submit(queued)
    load = await driver.engine.load()
    assert (load.running, load.waiting) == (8, 1)
    await driver.engine.abort(queued.request_id)
    await asyncio.wait_for(all_of(waiting), 10)
    assert (await driver.finished(queued)).outcome is Outcome.ABORTED
    assert driver.kinds(queued) == [Finished]
    for one in running:
        await driver.engine.abort(one.request_id)
    for stream in streams:
        await all_of(stream)
    for one in running:
        await driver.finished(one)
    assert await driver.idle_pool_tokens() == 0


async def test_a_request_aborted_between_chunks_of_its_prefill_is_freed(driver: Driver) -> None:
    made = call("completions", completion(5), some_ids(4000, seed=6))
    stream = await driver.engine.submit(made)
    await driver.started(made)
    await driver.engine.abort(made.request_id)
    await all_of(stream)
    assert (await driver.finished(made)).outcome is Outcome.ABORTED
    assert driver.kinds(made) in ([PrefillStarted, Finished], FULL_LIFE)
    assert await driver.idle_pool_tokens() == 0


async def test_leaving_a_stream_aborts_nothing(driver: Driver) -> None:
    made = call("chat", chat(20, stream=True), some_ids(30, seed=7))
    stream = await driver.engine.submit(made)
    await anext(stream)
    await stream.aclose()
    assert (await driver.finished(made)).output_tokens == 20


async def test_a_cancelled_submit_is_aborted(driver: Driver) -> None:
    made = call("chat", chat(3000), some_ids(30, seed=8))
    submitting = asyncio.create_task(driver.engine.submit(made))
    await asyncio.sleep(0)
    submitting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await submitting
    assert (await driver.finished(made)).outcome is Outcome.ABORTED


async def test_aborting_an_unknown_request_does_nothing(driver: Driver) -> None:
    await driver.engine.abort("0" * 32)
    made = call("chat", chat(4), some_ids(30, seed=9))
    await driver.answer(made)
    finish = await driver.finished(made)
    assert (finish.outcome, finish.output_tokens) == (Outcome.FINISHED, 4)


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (chat(-1), "max_new_tokens"),
        (chat(50_000), "max_completion_tokens"),
        (chat(temperature="warm"), "temperature"),
        (chat(n=2), "n above 1"),
        (chat(seed=2**70), "cannot be sent"),
        (chat(messages=[]), "Messages cannot be empty"),
        (chat(messages=[{"role": "nobody", "content": "x"}]), "messages.0.role"),
    ],
)
async def test_what_sglang_refuses_is_refused_at_submit(
    driver: Driver, body: dict, part: str
) -> None:
    made = call("chat", body, some_ids(10, seed=9))
    with pytest.raises(EngineRefused, match=part) as refused:
        await driver.engine.submit(made)
    assert refused.value.status == 400
    assert refused.value.body["error"]["type"] == "invalid_request_error"
    assert made.request_id not in {event.request_id for event in driver.log}
    assert (await driver.engine.load()).waiting == 0


async def test_a_prompt_beyond_the_context_is_refused(driver: Driver) -> None:
    with pytest.raises(EngineRefused, match="context length") as refused:
        await driver.engine.submit(call("chat", chat(stream=True), some_ids(5000, seed=10)))
    assert refused.value.status == 400


async def test_an_id_that_is_in_the_engine_or_no_id_is_a_callers_mistake(driver: Driver) -> None:
    made = call("chat", chat(50), some_ids(10, seed=11))
    stream = await driver.engine.submit(made)
    with pytest.raises(ValueError, match="in the engine already"):
        await driver.engine.submit(made)
    await all_of(stream)
    await driver.finished(made)
    with pytest.raises(ValueError, match="32 hex"):
        await driver.engine.submit(type(made)("short", "chat", chat(), [1, 2]))


async def test_a_json_schema_shapes_the_answer_of_random_weights(driver: Driver) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    body = chat(64, response_format=wanted, ignore_eos=False)
    (chunk,) = await driver.answer(call("chat", body, some_ids(30, seed=12)))
    answer = json.loads(chunk.payload["choices"][0]["message"]["content"])
    assert list(answer) == ["ok"]
    assert isinstance(answer["ok"], bool)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_grammar_that_does_not_compile_is_refused_by_the_iterator(
    driver: Driver, stream: bool
) -> None:
    made = call("completions", completion(5, regex="(unclosed", stream=stream), some_ids(30, 13))
    answers = await driver.engine.submit(made)
    with pytest.raises(EngineRefused) as refused:
        await all_of(answers)
    assert refused.value.status == 400
    assert (await driver.finished(made)).outcome is Outcome.FAILED
    assert driver.kinds(made) == [Finished]


async def test_eviction_is_counted_and_a_flush_empties_the_cache(driver: Driver) -> None:
    before = (await driver.engine.load()).evicted_tokens_total
    ids = some_ids(3500, seed=14)
    for seed in (15, 16):
        made = call("completions", completion(1), some_ids(3500, seed=seed))
        await driver.answer(made)
        await driver.finished(made)
    evicted = (await driver.engine.load()).evicted_tokens_total - before
    assert evicted >= 2 * 3500 - POOL_TOKENS
    first, second = (call("completions", completion(1), ids) for _ in range(2))
    await driver.answer(first)
    assert await driver.engine.flush_cache()
    await driver.answer(second)
    assert (await driver.finished(second)).cached_tokens == 0


async def test_a_flush_is_refused_while_requests_run(driver: Driver) -> None:
    made = call("chat", chat(500), some_ids(30, seed=17))
    stream = await driver.engine.submit(made)
    await driver.started(made)
    assert not await driver.engine.flush_cache()
    await driver.engine.abort(made.request_id)
    await all_of(stream)


async def test_no_report_was_lost_and_every_request_finished_once(driver: Driver) -> None:
    load = await driver.engine.load()
    assert load.extra["lost_reports_total"] == 0
    assert (load.running, load.waiting) == (0, 0)
    finishes = [e.request_id for e in driver.log if isinstance(e, Finished)]
    assert len(finishes) == len(set(finishes))
    assert {e.request_id for e in driver.log} == set(finishes)
    ended = [e.request_id for e in driver.log if isinstance(e, PrefillEnded)]
    assert len(ended) == len(set(ended))


async def test_when_the_scheduler_dies_everything_says_so_and_nothing_stays(
    driver: Driver,
) -> None:
    """Last, since it takes the module's engine with it."""
    family = psutil.Process(driver.engine.pid).children(recursive=True)
    scheduler = next(p for p in family if p.name().startswith("sglang::schedul"))
    made = call("chat", chat(3000, stream=True), some_ids(30, seed=18))
    stream = await driver.engine.submit(made)
    await anext(stream)
    scheduler.kill()
    with pytest.raises(EngineDied):
        await asyncio.wait_for(all_of(stream), 10)
    with pytest.raises(EngineDied):
        await driver.engine.submit(call("chat", chat(), [1, 2, 3]))
    with pytest.raises(EngineDied):
        await driver.engine.load()
    for _ in range(600):
        if driver.died is not None and not any(_alive(p) for p in family):
            break
        await asyncio.sleep(0.1)
    assert driver.died is not None
    assert not any(_alive(p) for p in family)


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
