"""Requests from skeletons to a real engine, and consumers of what it says of its cache."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Callable
from functools import lru_cache

from prism_ray import cache_news
from prism_ray.cache_news import CacheNews
from prism_ray.dart.anchors import skeleton_marks
from prism_ray.dispatch import ExactResidency, PredictedResidency
from prism_ray.engine.base import EngineCall
from prism_ray.engine.sglang import SglangEngine
from prism_ray.model import Atom, Order, Segment, SegmentKind, Skeleton

from ..engine_driver import Driver, chat, some_ids

SYSTEM = Segment(b"system", 20, SegmentKind.SYSTEM)
GAP = Atom(b"gap", 3)


@lru_cache(maxsize=4096)
def ids_of(atom: Atom) -> tuple[int, ...]:
    """The token ids of an atom: random, the same for the same id."""
    return tuple(some_ids(atom.tokens, int.from_bytes(atom.id, "big")))


class Prompt:
    """A skeleton in one order, with a private end of its own."""

    def __init__(self, skeleton: Skeleton, order: Order | None = None) -> None:
        self.skeleton = skeleton
        self.order = skeleton.native_order if order is None else order
        self.name = uuid.uuid4().hex
        self.path = skeleton.path(self.order)

    def call(self, private_ids: list[int] | None = None, max_tokens: int = 2) -> EngineCall:
        marks = skeleton_marks(self.skeleton, self.order)
        ids = [token for atom in self.path for token in ids_of(atom)]
        private = Atom(self.name.encode(), self.skeleton.private_tokens)
        return EngineCall(
            self.name,
            "chat",
            chat(max_tokens),
            ids + (list(ids_of(private)) if private_ids is None else private_ids),
            boundaries=tuple(mark.offset_tokens for mark in marks),
            segments=tuple(mark.segment for mark in marks),
            path_keys=tuple(mark.path_key for mark in marks),
            system_tokens=self.skeleton.system.tokens if self.skeleton.system else 0,
        )


def retrieval(chooser: random.Random, documents: int = 40) -> Prompt:
    """Three of so many documents behind a system prompt, popular ones more often."""
    weights = [1 / (n + 1) for n in range(documents)]
    chosen = list(dict.fromkeys(chooser.choices(range(documents), weights, k=3)))
    segments = tuple(Segment(b"document %d" % n, 30 + n, run=0) for n in chosen)
    skeleton = Skeleton(SYSTEM, segments, (GAP,) * len(segments), 10)
    return Prompt(skeleton, tuple(chooser.sample(range(len(segments)), len(segments))))


class Following:
    """What the engine says, and who listens: ``exact`` to everything, ``listeners`` as well."""

    driver: Driver

    def __init__(self, engine: SglangEngine) -> None:
        self.engine = engine
        self.exact = ExactResidency()
        self.predicted = PredictedResidency()
        self.listeners: list[Callable[[CacheNews], None]] = []
        self.messages = 0
        self.bytes = 0
        engine.follow_cache(self._told)

    def _told(self, message: bytes) -> None:
        self.messages += 1
        self.bytes += len(message)
        news = cache_news.decode(message)
        if not news.parts:
            self.exact.apply(news)
        else:
            self._skip(news)
        for listener in self.listeners:
            listener(news)

    def _skip(self, news: CacheNews) -> None:
        """A snapshot that somebody else asked for: ``exact`` takes its number and not its word."""
        self.exact.apply(news._replace(spans=(), part=0, parts=0))

    async def walk(self) -> ExactResidency:
        """What a walk of the real tree finds now."""
        walked = ExactResidency()
        self.listeners.append(walked.apply)
        await self.engine.snapshot_cache()
        await until(lambda: not walked.wants_snapshot and walked.state == "exact", 10.0)
        self.listeners.remove(walked.apply)
        return walked

    async def serve(self, prompt: Prompt) -> int:
        """Serve one request; the engine's cached tokens."""
        call = prompt.call()
        await self.driver.answer(call)
        return (await self.driver.finished(call)).cached_tokens


async def until(holds: Callable[[], bool], timeout_s: float) -> float:
    """Seconds until something holds."""
    started_s = time.monotonic()
    async with asyncio.timeout(timeout_s):
        while not holds():  # noqa: ASYNC110 - conditions of other objects, no events
            await asyncio.sleep(0.002)
    return time.monotonic() - started_s
