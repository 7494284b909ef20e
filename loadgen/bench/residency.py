"""What it costs to follow an engine's cache: CPU per request in the scheduler process and in QAS.

The reference cache stands for the engine's, or with ``--sglang`` DART's cache in SGLang, driven as its
scheduler does; no process is started. The stopwatch is the CPU time of the thread.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import click

from loadgen.traces.zipf_hotspot import ZipfHotspot
from prism_ray import cache_news
from prism_ray.dart import Anchor, PrefixCache, skeleton_anchors, skeleton_marks
from prism_ray.dispatch import ExactResidency, PredictedResidency, Residency
from prism_ray.engine.cache_ledger import CacheLedger
from prism_ray.model import Atom, Ticket

POOL_TOKENS = 100_000
BLOCKS = 20
MATCHES = 2
"""How often a request's path is looked up before it is sent: by its policy, and by the dispatcher."""


class Row(NamedTuple):
    """``side`` is where the CPU is spent; ``us_per_request`` that of the best block."""

    side: str
    what: str
    us_per_request: float
    bytes_per_request: float = 0.0


class _Prompt(NamedTuple):
    request_id: str
    path: tuple[Atom, ...]
    whole: tuple[Atom, ...]
    anchors: tuple[Anchor, ...]
    prompt_tokens: int


def _prompt(ticket: Ticket) -> _Prompt:
    skeleton = ticket.skeleton
    order = skeleton.native_order
    path = skeleton.path(order)
    own = (
        Atom(b"private of " + ticket.request_id.encode(), skeleton.private_tokens),
        Atom(b"output of " + ticket.request_id.encode(), 32),
    )
    anchors = skeleton_anchors(skeleton, order)
    return _Prompt(ticket.request_id, path, path + own, anchors, skeleton.prompt_tokens)


def serve(cache: PrefixCache, prompt: _Prompt) -> None:
    """What an engine does to its cache for one request: match, make room, insert twice."""
    total = prompt.prompt_tokens + 32
    cache.match(prompt.whole, prompt.prompt_tokens - 1)
    missing = cache.tree.total_tokens + total - POOL_TOKENS
    if missing > 0:
        cache.evict(missing)
    cache.insert(prompt.whole, prompt.prompt_tokens, prompt.anchors)
    cache.insert(prompt.whole, total, prompt.anchors)


def follow(residency: Residency, prompt: _Prompt, messages: list[bytes]) -> None:
    """What QAS does for one request."""
    for _ in range(MATCHES):
        residency.match(prompt.path)
    residency.send(prompt.request_id, prompt.path, POOL_TOKENS)
    if isinstance(residency, ExactResidency):
        for message in messages:
            residency.apply(cache_news.decode(message))
    residency.prefill_ended(prompt.request_id)
    residency.release(prompt.request_id)


def measure(seed: int, requests: int) -> list[Row]:
    """Rows for ``requests`` requests of the paper's trace, of which the first half warms up."""
    prompts = [_prompt(ticket) for ticket in islice(ZipfHotspot(seed).tickets(), requests)]
    half = len(prompts) // 2
    ledger = CacheLedger()
    told: dict[str, list[bytes]] = {}
    observed = PrefixCache(pool_tokens=POOL_TOKENS, observer=ledger)
    alone = PrefixCache(pool_tokens=POOL_TOKENS)

    def serve_and_tell(prompt: _Prompt) -> None:
        serve(observed, prompt)
        told[prompt.request_id] = [cache_news.encode(news) for news in ledger.take()]

    bare_us = _us_per_request(lambda prompt: serve(alone, prompt), prompts)
    telling_us = _us_per_request(serve_and_tell, prompts)
    size = sum(len(m) for p in prompts[half:] for m in told[p.request_id])
    rows = [
        Row("engine", "cache alone", bare_us),
        Row("engine", "cache, ledger, encoding", telling_us, size / (len(prompts) - half)),
    ]
    exact = ExactResidency()
    views: dict[str, Residency] = {"predicted": PredictedResidency(), "exact": exact}
    for name, view in views.items():

        def follow_one(prompt: _Prompt, view: Residency = view) -> None:
            follow(view, prompt, told[prompt.request_id])

        rows.append(Row("qas", name, _us_per_request(follow_one, prompts)))
        view.check_integrity()
    if exact.state != "exact" or exact.spans() != ledger.spans():
        raise RuntimeError("QAS's copy of the cache is not what the engine holds")
    return rows


def measure_sglang(seed: int, requests: int) -> list[Row]:
    """The engine's side in SGLang's own cache: match, insert and evict alone, and followed."""
    from loadgen.bench.tree_arms import CacheDriver, CacheRequest, build_cache, prepare_process

    prepare_process()
    tickets = list(islice(ZipfHotspot(seed).tickets(), requests))
    prompts = [_prompt(ticket) for ticket in tickets]
    made = {}
    for ticket, prompt in zip(tickets, prompts, strict=True):
        marks = skeleton_marks(ticket.skeleton, ticket.skeleton.native_order)
        made[ticket.request_id] = (
            [_ids(a) for a in prompt.whole[:-1]],
            marks,
            _ids(prompt.whole[-1]),
        )
    rows: list[Row] = []
    for name in ("SGLang's cache alone", "with ledger and encoding"):
        cache = build_cache("dart", POOL_TOKENS, page_size=1, context=4096)
        ledger = CacheLedger(cache.walk)
        if rows:
            cache.observer = ledger
        driver = CacheDriver(cache)

        def serve_one(
            prompt: _Prompt, driver: CacheDriver = driver, ledger: CacheLedger = ledger
        ) -> None:
            ids, marks, answer = made[prompt.request_id]
            driver.serve(CacheRequest(prompt.request_id, list(chain(*ids)), marks), answer)
            for news in ledger.take():
                cache_news.encode(news)

        rows.append(Row("engine", name, _us_per_request(serve_one, prompts)))
    if ledger.spans() != {key: (start, end) for key, start, end in cache.walk()}:
        raise RuntimeError("the ledger is not what a walk of the tree finds")
    return rows


def _ids(atom: Atom) -> range:
    first = int.from_bytes(blake2b(atom.id, digest_size=6).digest(), "big")
    return range(first, first + atom.tokens)


def _us_per_request(work: Callable[[_Prompt], None], prompts: list[_Prompt]) -> float:
    """Of the best of several blocks in the second half; the first warms caches up."""
    half = len(prompts) // 2
    for prompt in prompts[:half]:
        work(prompt)
    size = max(1, half // BLOCKS)
    costs_s = []
    for first in range(half, len(prompts) - size + 1, size):
        start = time.thread_time()
        for prompt in prompts[first : first + size]:
            work(prompt)
        costs_s.append((time.thread_time() - start) / size)
    for prompt in prompts[half + size * len(costs_s) :]:
        work(prompt)
    return 1e6 * min(costs_s)


@click.command("residency")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the rows here.")
@click.option("--requests", type=click.IntRange(4), default=8_000, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--sglang", is_flag=True, help="SGLang's cache with DART, too (needs SGLang).")
def residency(json_path: Path | None, requests: int, seed: int, sglang: bool) -> None:
    """Measure what following an engine's cache costs, on the paper's trace and a pool that evicts."""
    rows = measure(seed, requests)
    if sglang:
        rows += measure_sglang(seed, min(requests, 2_000))
    click.echo(f"{'side':<9}{'what':<26}{'us/request':>12}{'bytes/request':>15}")
    for row in rows:
        size = f"{row.bytes_per_request:,.0f}" if row.bytes_per_request else "-"
        click.echo(f"{row.side:<9}{row.what:<26}{row.us_per_request:>12.1f}{size:>15}")
    if json_path is not None:
        json_path.write_text(json.dumps([row._asdict() for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    residency()
