"""What the QAS actor knows of a replica's cache, and how it says so."""

from __future__ import annotations

import asyncio

from prism_ray.cache_news import CacheNews, Span
from prism_ray.dart.anchors import path_keys
from prism_ray.model import Atom, Decision
from prism_ray.serving.messages import Heard

from .actor_bench import Bench, hello

(SHARED,) = path_keys([Atom(b"shared", 40)])


async def predicted(bench: Bench, name: str) -> int:
    decision = await asyncio.wait_for(bench.submit(name), 1.0)
    assert isinstance(decision, Decision)
    return decision.predicted_cached_tokens


async def residency(bench: Bench) -> str:
    (replica,) = (await bench.actor.state())["replicas"]
    return str(replica["residency"])


async def test_the_first_report_is_answered_with_the_wish_for_a_snapshot() -> None:
    async with Bench() as bench:
        await bench.actor.hello(hello("r", tells_cache=True))
        assert await bench.tell("r") == Heard.SNAPSHOT_WANTED
        assert await residency(bench) == "degraded"
        assert await bench.tell("r", CacheNews(0, 17, (Span(SHARED, 0, 40),), 0, 1)) == Heard.TAKEN
        assert await residency(bench) == "exact"
        assert await predicted(bench, "shared 1") == 40


async def test_the_engines_word_decides_what_is_predicted() -> None:
    async with Bench() as bench:
        await bench.actor.hello(hello("r", tells_cache=True))
        await bench.tell("r", CacheNews(0, 0), CacheNews(0, 1, (Span(SHARED, 0, 30),)))
        assert await predicted(bench, "shared 1") == 30
        await bench.report("r", "shared 1")
        await bench.tell("r", CacheNews(0, 2, (Span(SHARED, 0, 0),)))
        assert await predicted(bench, "shared 2") == 0


async def test_a_gap_degrades_until_the_snapshot_has_come() -> None:
    async with Bench() as bench:
        await bench.actor.hello(hello("r", tells_cache=True))
        assert await bench.tell("r", CacheNews(0, 0)) == Heard.TAKEN
        assert await bench.tell("r", CacheNews(0, 2)) == Heard.SNAPSHOT_WANTED
        assert await residency(bench) == "degraded"
        assert await bench.tell("r", CacheNews(0, 3)) == Heard.SNAPSHOT_WANTED
        assert await bench.tell("r", CacheNews(0, 4, (), 0, 1)) == Heard.TAKEN
        assert await residency(bench) == "exact"


async def test_what_cannot_be_read_counts_as_lost() -> None:
    async with Bench() as bench:
        await bench.actor.hello(hello("r", tells_cache=True))
        await bench.tell("r", CacheNews(0, 0))
        seat = bench.actor._dispatcher.seats["r"]
        bench.actor._replicas._hear_of_cache(seat, b"nonsense")
        assert await bench.tell("r", CacheNews(0, 1)) == Heard.TAKEN


async def test_an_engine_that_says_nothing_is_predicted() -> None:
    async with Bench() as bench:
        await bench.actor.hello(hello("r"))
        assert await bench.tell("r", CacheNews(0, 5, (Span(SHARED, 0, 40),))) == Heard.TAKEN
        assert await residency(bench) == "fallback"
        assert await predicted(bench, "shared 1") == 0
        await bench.report("r", "shared 1")
        assert await predicted(bench, "shared 2") == 40


async def test_how_far_predictions_were_off_is_counted() -> None:
    async with Bench() as bench:
        await bench.actor.hello(hello("r", tells_cache=True))
        await bench.tell("r", CacheNews(0, 0), CacheNews(0, 1, (Span(SHARED, 0, 40),)))
        assert await predicted(bench, "shared 1") == 40
        await bench.report("r", "shared 1")  # had 10 tokens cached
        text = (await bench.actor.metrics(type(bench.actor._telemetry.meters.total)())).decode()
        assert "prism_predicted_cached_tokens_total 40.0" in text
        assert "prism_cached_tokens_total 10.0" in text
        assert "prism_mispredicted_cached_tokens_total 30.0" in text
        assert 'prism_replica_residency{replica="r",state="exact"} 1.0' in text
