"""DART in a real SGLang engine on a CPU: pages of 16, chunks of 128 and a pool that is too small."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from prism_ray.dart import dump_hints, path_keys
from prism_ray.engine.base import EngineCall, Finished
from prism_ray.engine.sglang import SglangEngine
from prism_ray.model import Atom, Demand, DemandTable, Outcome
from tests.integration.engine_driver import Driver, call, completion, some_ids

POOL_TOKENS = 1600
PAGE = 16

pytestmark = [pytest.mark.real_engine, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def driver(random_tiny: Path) -> AsyncIterator[Driver]:
    arguments = {
        "max_total_tokens": POOL_TOKENS,
        "context_length": 1024,
        "chunked_prefill_size": 128,
        "max_running_requests": 8,
        "page_size": PAGE,
        "schedule_conservativeness": 0.1,  # admit more than fits: requests must be retracted
        "attention_backend": "torch_native",  # our own CPU attention has pages of 1
        "log_level": "warning",
    }
    engine = SglangEngine(
        str(random_tiny),
        arguments,
        cpu=True,
        environment={"SGLANG_ENABLE_RANK_CONSENSUS_CHECKER": "1"},
        retention_params={"protect_anchors": 1, "protect_share": 0.5},
    )
    info = await engine.start()
    yield Driver(engine, info)
    await engine.stop()


def document_call(
    name: bytes, tokens: list[int], question: list[int], max_tokens: int = 2, **fields: Any
) -> EngineCall:
    """A prompt of one marked document and a private question."""
    prompt = [*tokens, *question]
    marks: dict[str, Any] = {
        "boundaries": (len(tokens), len(prompt)),
        "segments": (name, None),
        "path_keys": (path_keys((Atom(name, len(tokens)),))[0], None),
    }
    # With ignore_eos SGLang reserves the whole output at admission, and nothing is ever retracted.
    body = completion(max_tokens, ignore_eos=False, min_tokens=max_tokens)
    return call("completions", body, prompt, **marks | fields)


async def cached_tokens(driver: Driver, made: EngineCall) -> int:
    await driver.answer(made)
    return (await driver.finished(made)).cached_tokens


async def flush(driver: Driver) -> None:
    await driver.idle_pool_tokens()
    assert await driver.engine.flush_cache()


async def test_an_engine_with_dart_takes_hints_and_tells_what_it_keeps(driver: Driver) -> None:
    assert driver.info.takes_hints
    assert driver.info.tells_cache
    assert driver.info.page_size == PAGE


async def test_a_wanted_document_outlives_traffic_that_recency_would_have_kept(
    driver: Driver,
) -> None:
    await flush(driver)
    wanted, name = some_ids(256, seed=1), b"wanted".ljust(16)
    table = dump_hints(DemandTable(1, (Demand(name, 1e6),)), "first")
    assert await cached_tokens(driver, document_call(name, wanted, [5, 6], hints=table)) == 0
    for seed in range(2, 12):  # 2,560 tokens of other documents in a pool of 1,600
        other = b"%d" % seed
        made = document_call(other.ljust(16), some_ids(256, seed), some_ids(20, 500 + seed))
        await cached_tokens(driver, made)
    assert await cached_tokens(driver, document_call(name, wanted, [9, 9])) == 256
    extra = (await driver.engine.load()).extra
    assert extra["evicted_tokens_reusable"] >= 1000
    assert extra["evicted_tokens_private"] > 0
    assert extra["protected_tokens"] == 256


def malformed_demand(chooser: random.Random) -> dict[str, Any]:
    """One of many ways in which a demand table is none."""
    name = chooser.randbytes(8).hex()
    row = [name, chooser.random(), 1]
    bad_rows: list[Any] = [
        [1],
        5,
        [name],
        [[], 1.0],
        [None, 1.0],
        [name, "much"],
        [name, float("nan")],
        [name, 1e300],
        [name, True],
        [name, 1.0, -2],
        [name, 1.0, 0.5],
        ["not hexadecimal", 1.0],
        ["", 1.0],
        ["ab" * 65, 1.0],
        {"segment": name},
        "x" * chooser.randrange(10_000),
    ]
    bad_fields: list[dict[str, Any]] = [
        {"version": chooser.choice(["x", None, -1, 1.5, True, 1 << 63, [1], {}])},
        {"epoch": chooser.choice([7, None, [], "e" * 129])},
        {"v": chooser.choice([0, 2, "1", None])},
        {"rows": chooser.choice([None, 5, "rows", {}, {"a": 1}])},
        {"rows": [row] * 8193},
        *({"rows": [row] * chooser.randrange(3) + [bad]} for bad in bad_rows),
    ]
    return {"version": 1 << 40, "epoch": "first", "rows": [row]} | chooser.choice(bad_fields)


def malformed_anchors(chooser: random.Random) -> dict[str, Any]:
    """Boundaries and names of a call that become anchors which break the format."""
    end = 42
    marks: list[tuple[tuple[int, ...], tuple[bytes | None, ...]]] = [
        ((30, chooser.randrange(30)), (b"a", b"b")),
        ((-chooser.randrange(1, 99), end), (b"a", None)),
        ((30, 1 << 31), (b"a", None)),
        ((30, end), (b"", None)),
        ((30, end), (chooser.randbytes(chooser.randrange(65, 9000)), None)),
        (tuple(range(4097)), (b"a",) * 4097),
    ]
    boundaries, segments = chooser.choice(marks)
    return {"boundaries": boundaries, "segments": segments, "path_keys": ()}


async def test_a_thousand_malformed_hints_are_counted_and_everything_is_served(
    driver: Driver,
) -> None:
    chooser = random.Random(5)
    before = (await driver.engine.load()).extra.get("hints_ignored_total", 0.0)
    tokens = some_ids(40, seed=50)

    async def send(count: int) -> None:
        for _ in range(count):
            fields = {"hints": malformed_demand(chooser), **malformed_anchors(chooser)}
            made = document_call(b"bad".ljust(16), tokens, [1, 2], **fields)
            await driver.answer(made)
            assert (await driver.finished(made)).outcome is Outcome.FINISHED

    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(send(63))
    after = (await driver.engine.load()).extra["hints_ignored_total"]
    assert after - before == 2 * 8 * 63  # anchors and demand of each are bad
    # And a good one still counts.
    made = document_call(b"good".ljust(16), some_ids(64, seed=51), [1, 2])
    assert await cached_tokens(driver, made) == 0
    assert await cached_tokens(driver, replace(made, request_id=uuid.uuid4().hex)) == 64


async def test_salts_keep_prefixes_apart_also_where_anchors_are_equal(driver: Driver) -> None:
    await flush(driver)
    tokens, name = some_ids(64, seed=60), b"shared".ljust(16)
    for salt in ("one", "two"):
        made = document_call(name, tokens, [3, 4], cache_salt=salt)
        assert await cached_tokens(driver, made) == 0
    made = document_call(name, tokens, [4, 5], cache_salt="one")
    assert await cached_tokens(driver, made) == 64


async def test_more_than_the_pool_holds_at_once_is_retracted_ends_well_and_the_pool_stays_whole(
    driver: Driver,
) -> None:
    await flush(driver)
    before = (await driver.engine.load()).extra.get("retractions_total", 0.0)
    answers = [
        document_call(b"%d" % seed, some_ids(160, seed), [1, 2], max_tokens=330)
        for seed in range(70, 78)
    ]
    chunks = await asyncio.gather(*(driver.answer(made) for made in answers))
    assert all(sum(chunk.tokens for chunk in answer) == 330 for answer in chunks)
    for made in answers:
        finish = await driver.finished(made)
        assert isinstance(finish, Finished)
        assert finish.outcome is Outcome.FINISHED
    await flush(driver)  # SGLang checks for lost slots when it is idle
    assert await driver.idle_pool_tokens() == 0
    assert (await driver.engine.load()).extra["retractions_total"] > before


async def test_aborts_in_every_stage_leave_a_cache_that_serves(driver: Driver) -> None:
    made = [
        document_call(b"%d" % seed, some_ids(300, seed), [1, 2], max_tokens=200)
        for seed in range(80, 88)
    ]
    streams = [await driver.engine.submit(each) for each in made]
    await driver.started(made[0])
    for each in made:
        await driver.engine.abort(each.request_id)
    for stream in streams:
        async for _ in stream:
            pass
    for each in made:
        await driver.finished(each)
    again = document_call(b"80", some_ids(300, 80), [5, 5])
    await driver.answer(again)
    assert await driver.idle_pool_tokens() == 0
