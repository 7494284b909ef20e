"""The simulated engine as a replica sees it: answers, events, aborts and ends."""

from __future__ import annotations

import asyncio
import time

import pytest

from prism_ray.config import ConfigError, PrismConfig
from prism_ray.engine import make_engine
from prism_ray.engine.base import (
    EngineCall,
    EngineDied,
    EngineRefused,
    Finished,
    PrefillEnded,
    PrefillStarted,
)
from prism_ray.engine.cost import CostModel
from prism_ray.engine.simulated import SimulatedEngine, SimulatedParams
from prism_ray.model import Outcome


class Bench:
    """An engine with a consumer of its events."""

    def __init__(self, cost: CostModel | None = None, **params) -> None:
        limits = {"pool_tokens": 4000, "context_length": 2000, "cost": "zero"} | params
        self.engine = SimulatedEngine(SimulatedParams(**limits), cost)
        self.events: list = []
        self.news = asyncio.Event()

    async def __aenter__(self) -> Bench:
        self.info = await self.engine.start()
        self.watch = asyncio.create_task(self._watch())
        return self

    async def _watch(self) -> None:
        async for event in self.engine.events():
            self.events.append(event)
            self.news.set()

    async def __aexit__(self, *exc) -> None:
        await self.engine.stop()
        if not self.watch.done():
            await self.watch

    async def ask(self, call: EngineCall) -> list[dict]:
        return [chunk.payload async for chunk in await self.engine.submit(call)]

    def of(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind)]

    async def finished(self, count: int) -> None:
        """Wait until so many requests have finished."""
        while len(self.of(Finished)) < count:
            self.news.clear()
            await self.news.wait()

    async def busy(self) -> bool:
        load = await self.engine.load()
        return bool(load.running or load.waiting)


def call(name: str, prompt: list[int] | int = 100, endpoint="completions", **more) -> EngineCall:
    ids = list(range(prompt)) if isinstance(prompt, int) else prompt
    fields = {
        key: more.pop(key)
        for key in ("boundaries", "segments", "hints", "system_tokens")
        if key in more
    }
    return EngineCall(name, endpoint, {"model": "m", **more}, ids, **fields)


async def test_a_completion_is_one_object_with_usage():
    async with Bench() as bench:
        [answer] = await bench.ask(call("r1", max_tokens=5))
    assert answer["id"] == "cmpl-r1"
    assert answer["object"] == "text_completion"
    assert answer["model"] == "m"
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "length"
    assert len(choice["text"].split()) == 5
    assert answer["usage"] == {
        "prompt_tokens": 100,
        "completion_tokens": 5,
        "total_tokens": 105,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_a_chat_stream_has_role_then_words_then_reason_then_usage():
    async with Bench() as bench:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        chunks = await bench.ask(call("r", endpoint="chat", max_tokens=3, **options))
        [plain] = await bench.ask(call("s", endpoint="chat", max_completion_tokens=3))
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[-1] == {}
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 3
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    text = "".join(delta.get("content", "") for delta in deltas)
    assert plain["object"] == "chat.completion"
    assert plain["choices"][0]["message"] == {"role": "assistant", "content": text}
    assert plain["usage"]["prompt_tokens_details"] == {"cached_tokens": 99}


async def test_a_stream_without_the_option_carries_no_usage_and_counts_each_token_once():
    async with Bench() as bench:
        stream = await bench.engine.submit(call("r", max_tokens=4, stream=True))
        chunks = [chunk async for chunk in stream]
    assert [chunk.tokens for chunk in chunks] == [1, 1, 1, 1, 0]
    assert not any("usage" in chunk.payload for chunk in chunks)


async def test_output_lengths_default_as_documented():
    async with Bench(chat_output_tokens=7) as bench:
        [completion] = await bench.ask(call("a"))
        [chat] = await bench.ask(call("b", endpoint="chat"))
    assert completion["usage"]["completion_tokens"] == 16
    assert chat["usage"]["completion_tokens"] == 7
    assert chat["choices"][0]["finish_reason"] == "stop"


async def test_the_text_depends_on_the_prompt_alone():
    async with Bench() as bench:
        same = await asyncio.gather(
            bench.ask(call("a", max_tokens=9)),
            bench.ask(call("b", max_tokens=9)),
            bench.ask(call("c", prompt=101, max_tokens=9)),
        )
        later = await bench.ask(call("d", max_tokens=9))
    texts = [answer["choices"][0]["text"] for [answer] in [*same, later]]
    assert texts[0] == texts[1] == texts[3] != texts[2]


async def test_events_tell_each_request_in_order_and_finish_it_once():
    async with Bench(max_running=4) as bench:
        names = [f"r{index}" for index in range(20)]
        calls = [call(name, prompt=list(range(i, i + 50))) for i, name in enumerate(names)]
        streams = [await bench.engine.submit(each) for each in calls]
        for stream in streams:
            async for _ in stream:
                pass
        await bench.finished(20)
    assert [event.request_id for event in bench.of(PrefillStarted)] == names
    assert sorted(event.request_id for event in bench.of(Finished)) == sorted(names)
    assert sorted(event.request_id for event in bench.of(PrefillEnded)) == sorted(names)
    for name in names:
        kinds = [type(event) for event in bench.events if event.request_id == name]
        assert kinds == [PrefillStarted, PrefillEnded, Finished]
    times = [event.at_s for event in bench.events]
    assert times == sorted(times)


async def test_equal_segments_are_equal_atoms_wherever_the_prompt_goes_on():
    document = list(range(1000, 1130))
    async with Bench() as bench:
        for index in range(2):
            prompt = [*range(40), *document, index, 7, 8]
            marks = {"boundaries": (40, 170, 173), "segments": (b"sys", b"doc", None)}
            await bench.ask(call(f"r{index}", prompt, **marks, system_tokens=40))
    assert [event.cached_tokens for event in bench.of(PrefillStarted)] == [0, 170]


async def test_prompts_that_part_inside_a_piece_share_its_whole_blocks():
    async with Bench(identity_block_tokens=8) as bench:
        await bench.ask(call("a", [*range(50), 1, 2, 3]))
        await bench.ask(call("b", [*range(50), 4, 5, 6], boundaries=(50,), segments=(b"turn",)))
    assert [event.cached_tokens for event in bench.of(PrefillStarted)] == [0, 48]


async def test_hints_decide_what_is_kept():
    async def cached(wanted: str) -> int:
        async with Bench(pool_tokens=260, context_length=260) as bench:
            for index, name in enumerate(("aa", "bb", "cc")):
                prompt = [*range(index * 1000, index * 1000 + 80), 9]
                marks = {"boundaries": (80, 81), "segments": (bytes.fromhex(name), None)}
                hints = {"version": index, "rows": [[wanted, 1e6, 0]]}
                await bench.ask(call(name, prompt, **marks, hints=hints, max_tokens=1))
            await bench.ask(call("big", list(range(5000, 5090)), max_tokens=1))
            await bench.ask(call("again", [*range(80), 10], max_tokens=1))
            return bench.of(PrefillStarted)[-1].cached_tokens

    assert await cached("aa") >= 64
    assert await cached("bb") == 0


async def test_aborting_mid_stream_ends_the_answer_and_finishes_once():
    async with Bench(cost=CostModel(base_s=0.002)) as bench:
        stream = await bench.engine.submit(call("r", max_tokens=1000, stream=True))
        received = [await anext(stream) for _ in range(3)]
        await bench.engine.abort("r")
        await bench.engine.abort("r")
        await bench.engine.abort("unknown")
        rest = [chunk async for chunk in stream]
        assert rest[-1].payload["choices"][0]["finish_reason"] == "abort"
        assert len(received) + len(rest) < 20
        assert not await bench.busy()
        assert (await bench.engine.load()).pool_used_tokens == 0
        await bench.ask(call("next", max_tokens=1))
    finished = [event for event in bench.of(Finished) if event.request_id == "r"]
    assert [event.outcome for event in finished] == [Outcome.ABORTED]
    assert 3 <= finished[0].output_tokens < 20


async def test_aborting_a_queued_request_takes_no_step():
    async with Bench(max_running=1, cost=CostModel(base_s=0.002)) as bench:
        first = await bench.engine.submit(call("first", max_tokens=50))
        second = await bench.engine.submit(call("second", max_tokens=50))
        await bench.engine.abort("second")
        [last] = [chunk.payload async for chunk in second]
        assert last["choices"][0]["finish_reason"] == "abort"
        await bench.finished(1)
        assert [event.request_id for event in bench.of(Finished)] == ["second"]
        [answer] = [chunk.payload async for chunk in first]
        assert answer["usage"]["completion_tokens"] == 50


async def test_closing_the_iterator_early_does_not_abort():
    async with Bench(cost=CostModel(base_s=0.001)) as bench:
        stream = await bench.engine.submit(call("r", max_tokens=10, stream=True))
        await anext(stream)
        await stream.aclose()
        await bench.finished(1)
    assert [(e.outcome, e.output_tokens) for e in bench.of(Finished)] == [(Outcome.FINISHED, 10)]


@pytest.mark.parametrize(
    ("body", "prompt", "param", "code"),
    [
        ({"n": 2}, 10, "n", None),
        ({"max_tokens": 0}, 10, "max_tokens", None),
        ({"max_tokens": "9"}, 10, "max_tokens", None),
        ({"stream": "yes"}, 10, "stream", None),
        ({"stream_options": 1}, 10, "stream_options", None),
        ({}, 0, "prompt", None),
        ({"max_tokens": 1991}, 10, "max_tokens", "context_length_exceeded"),
        ({"max_tokens": 1}, 2000, None, "context_length_exceeded"),
    ],
)
async def test_what_the_engine_will_not_do_is_a_typed_400(body, prompt, param, code):
    async with Bench() as bench:
        with pytest.raises(EngineRefused) as refusal:
            await bench.engine.submit(call("r", prompt, **body))
        assert refusal.value.status == 400
        error = refusal.value.body["error"]
        assert (error["param"], error["code"]) == (param, code)
        assert error["message"]
        assert not await bench.busy()
    assert bench.events == []


async def test_the_longest_possible_request_is_served():
    async with Bench() as bench:
        [answer] = await bench.ask(call("r", 10, max_tokens=1990))
    assert answer["usage"]["total_tokens"] == 2000


@pytest.mark.parametrize(
    "broken",
    [
        {"boundaries": (50, 20), "segments": (None, None)},
        {"boundaries": (500,), "segments": (None,)},
        {"boundaries": (50,)},
        {"hints": {"rows": [1]}},
    ],
)
async def test_calls_that_contradict_themselves_raise_and_leave_nothing(broken):
    async with Bench() as bench:
        with pytest.raises(ValueError):  # noqa: PT011  (each has its own message)
            await bench.engine.submit(call("r", **broken))
        assert not await bench.busy()


async def test_stopping_ends_answers_events_and_every_request():
    bench = Bench(cost=CostModel(base_s=0.01))
    async with bench:
        stream = await bench.engine.submit(call("r", max_tokens=1000, stream=True))
        await anext(stream)
        queued = await bench.engine.submit(call("q"))
        await bench.engine.stop()
        for each in (stream, queued):
            with pytest.raises(EngineDied):
                async for _ in each:
                    pass
        with pytest.raises(EngineDied):
            await bench.engine.submit(call("late"))
        await bench.watch
    assert sorted(event.request_id for event in bench.of(Finished)) == ["q", "r"]
    assert {event.outcome for event in bench.of(Finished)} == {Outcome.ABORTED}
    assert (await bench.engine.load()).pool_used_tokens == 0


async def test_a_crash_fails_requests_and_the_event_channel():
    async with Bench(cost=CostModel(base_s=0.01)) as bench:
        stream = await bench.engine.submit(call("r", max_tokens=1000))
        await bench.engine.crash()
        with pytest.raises(EngineDied):
            await anext(stream)
        with pytest.raises(EngineDied):
            await bench.watch
    assert [event.outcome for event in bench.of(Finished)] == [Outcome.FAILED]


async def test_a_failure_of_the_model_reaches_every_waiting_caller(monkeypatch):
    bench = Bench()

    def fail() -> None:
        raise AssertionError("broken")

    async with bench:
        monkeypatch.setattr(bench.engine._model, "begin_step", fail)
        stream = await bench.engine.submit(call("r"))
        with pytest.raises(EngineDied, match="broken"):
            await anext(stream)
        with pytest.raises(EngineDied, match="broken"):
            await bench.watch
        with pytest.raises(EngineDied):
            await bench.engine.submit(call("s"))
    assert [event.outcome for event in bench.of(Finished)] == [Outcome.FAILED]


async def test_steps_take_their_modelled_time_divided_by_speed():
    async with Bench(cost=CostModel(base_s=0.1), speed=10.0) as bench:
        began = time.monotonic()
        await bench.ask(call("r", max_tokens=20))
        elapsed = time.monotonic() - began
    assert 0.2 <= elapsed < 1.5


async def test_flushing_needs_an_idle_engine_and_forgets_prefixes():
    async with Bench(cost=CostModel(base_s=0.001)) as bench:
        stream = await bench.engine.submit(call("a", max_tokens=2))
        assert not await bench.engine.flush_cache()
        async for _ in stream:
            pass
        assert await bench.engine.flush_cache()
        await bench.ask(call("b", max_tokens=1))
    assert [event.cached_tokens for event in bench.of(PrefillStarted)] == [0, 0]


async def test_submitting_before_the_start_is_refused():
    with pytest.raises(EngineDied, match="not started"):
        await SimulatedEngine().submit(call("r"))


async def test_start_tells_what_the_engine_can_hold():
    async with Bench(page_size=16, pool_tokens=4010) as bench:
        assert (bench.info.pool_tokens, bench.info.page_size) == (4000, 16)
        assert (bench.info.context_length, bench.info.model) == (2000, "simulated")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"pool": 1}, "unknown key 'pool'; known: .*pool_tokens"),
        ({"pool_tokens": "many"}, "pool_tokens: expected a whole number"),
        ({"overlap": 1}, "overlap: expected true or false"),
        ({"speed": 0}, "speed"),
        ({"cost": "h100"}, "unknown profile"),
        ({"retention": "belady"}, "unknown retention"),
    ],
)
def test_wrong_parameters_are_refused_by_name(values, message):
    with pytest.raises(ValueError, match=message):
        SimulatedParams.from_mapping(values)


def test_chunked_prefill_can_be_switched_off():
    params = SimulatedParams.from_mapping({"chunked_prefill_tokens": None, "speed": 2})
    assert params.chunked_prefill_tokens is None


def config(**engine) -> PrismConfig:
    values = {"kind": "simulated", "simulated": engine}
    return PrismConfig.load(
        {
            "model": {"name": "tiny", "tokenizer": "builtin"},
            "engine": values,
            "replicas": {"max_running": 3},
            "retention": {"policy": "lru"},
        }
    )


def test_a_config_makes_the_engine_that_it_describes():
    params = make_engine(config(pool_tokens=777, cost="zero")).params
    assert (params.pool_tokens, params.max_running) == (777, 3)
    assert (params.retention, params.model) == ("lru", "tiny")


@pytest.mark.parametrize("engine", [{"max_running": 9}, {"nonsense": 1}])
def test_a_config_that_does_not_fit_is_refused_with_its_path(engine):
    with pytest.raises(ConfigError, match=r"engine\.simulated"):
        make_engine(config(**engine))


@pytest.mark.parametrize("retention", ["dart", "planned", "lru"])
async def test_it_tells_what_a_cache_with_retention_counts(retention: str) -> None:
    async with Bench(retention=retention, pool_tokens=250) as bench:
        for number in range(4):
            prompt = list(range(1000 * number, 1000 * number + 100))
            await bench.ask(call(f"r{number}", prompt, max_tokens=2))
        extra = (await bench.engine.load()).extra
    kinds = ("private", "generated", "reusable", "system")
    evicted = [extra.get(f"evicted_tokens_{kind}") for kind in kinds]
    if retention == "lru":
        assert evicted == [None] * 4, "SGLang's own cache tells no classes"
    else:
        assert evicted[0] or evicted[1]
        assert evicted[2:] == [0, 0]
        assert extra["protected_tokens"] == 0
