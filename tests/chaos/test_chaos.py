"""Faults of many kinds, one after the other and sometimes two at once, under load; then the books.

By default a short form with simulated engines. `make chaos` runs the whole form, with a real SGLang
replica among them. Environment: ``PRISM_CHAOS=1`` the whole form, ``PRISM_CHAOS_SEED`` the seed,
``PRISM_CHAOS_FAULTS`` how many faults, ``PRISM_CHAOS_JSON`` a file for what came of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from loadgen.rows import Outcome, RequestRow
from prism_ray.serving.replica import Replica
from tests.faults.application import Application
from tests.faults.books import Books, differences, ended_near, last_looks, sum_of, untold
from tests.faults.kinds import KINDS, Kind
from tests.faults.load import Load, redone, seen
from tests.faults.processes import INGRESS, QAS, Family
from tests.faults.replicas import MIXED, SIMULATED, FaultyReplica, MixedReplica, make_random_tiny

WHOLE = os.environ.get("PRISM_CHAOS") == "1"
SEED = int(os.environ.get("PRISM_CHAOS_SEED") or (secrets.randbelow(10_000) if WHOLE else 1))
FAULTS = int(os.environ.get("PRISM_CHAOS_FAULTS") or (12 if WHOLE else 3))

# The whole form waits for real engines, on a busy machine for minutes each: every wait has its own limit.
pytestmark = [pytest.mark.serve, pytest.mark.timeout(0 if WHOLE else 600)]

SHORT_FORM = ("replica killed", "QAS killed", "ingress killed")
"""What the short form draws from, on two replicas: one of each, in the seed's order."""

REFUSED = "refused 503 no_replica"
"""Allowed where two faults overlap: there may be no replica at all."""

Deploy = Callable[[dict[str, Any], type[Replica]], Application]


@dataclass
class Injected:
    """One fault, or two at once, and what came of it. Times are seconds since the load began."""

    faults: list[str]
    at_s: float
    normal_after_s: float = 0.0
    seen: dict[str, int] = field(default_factory=dict)
    redone: int = 0
    longest_s: float = 0.0

    def __str__(self) -> str:
        lost = {end: count for end, count in self.seen.items() if end != "answered"}
        return (
            f"{self.at_s:6.1f} s  {' + '.join(self.faults)}: normal after {self.normal_after_s:.1f} s; "
            f"{self.seen.get('answered', 0)} answered, {self.redone} of them decided anew, the "
            f"longest took {self.longest_s:.1f} s; other ends: {lost or 'none'}"
        )


def drawn(rng: random.Random) -> list[list[Kind]]:
    """The faults in order; every kind before any comes twice, and in the whole form some in pairs."""
    pool = [kind for kind in KINDS if WHOLE or kind.name in SHORT_FORM]
    order: list[Kind] = []
    while len(order) < FAULTS:
        order += rng.sample(pool, len(pool))
    groups: list[list[Kind]] = []
    for kind in order[:FAULTS]:
        alone = groups[-1][0] if groups and len(groups[-1]) == 1 else kind
        both = alone is not kind and alone.with_others and kind.with_others
        if WHOLE and both and rng.random() < 0.5:
            groups[-1].append(kind)
        else:
            groups.append([kind])
    return groups


async def ordeal(app: Application, groups: list[list[Kind]], rng: random.Random) -> None:
    """All faults under load, then the books. AssertionError for anything that may not be."""
    injected: list[Injected] = []
    async with app.client() as http, Family() as family, Books() as books:
        await app.until_normal(http)
        async with Load(app.base_url, seed=SEED, rate_per_s=4.0, leaving=0.1) as load:
            await asyncio.sleep(2.0)
            for group in groups:
                if rng.random() < 0.5:
                    await load.burst(40)  # so that there is a window
                await asyncio.sleep(rng.uniform(0.2, 1.5))
                injected.append(await _inject(app, http, group, rng, load))
                await asyncio.sleep(rng.uniform(0.5, 2.0))
        _attribute(injected, load.rows)
        _print(injected, load)
        print(f"books closed {await app.until_books_close(http):.1f} s after the last request")
        await books.until_told()
        amiss = await _compare(app, books, load)
        orphans = await _until_none(family.orphans, within_s=15.0)
        assert not orphans, f"processes without their actor: {orphans}"
    _check(groups, injected, load)
    assert not amiss, amiss


async def _inject(
    app: Application, http: Any, group: list[Kind], rng: random.Random, load: Load
) -> Injected:
    """Let it happen, and wait until nothing shows of it."""
    record = Injected([kind.name for kind in group], load.now_s)
    gone = await asyncio.gather(*(kind.inject(rng) for kind in group))
    await app.until_normal(http, {pid for pids in gone for pid in pids})
    record.normal_after_s = load.now_s - record.at_s
    print(f"{record.at_s:6.1f} s {record.faults}: normal after {record.normal_after_s:.1f} s")
    return record


async def _until_none(orphans: Callable[[], list[str]], within_s: float) -> list[str]:
    deadline = time.monotonic() + within_s
    while found := await asyncio.to_thread(orphans):
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(0.5)
    return found


def _attribute(injected: list[Injected], rows: list[RequestRow]) -> None:
    """To each fault the requests that ended between it and the next one."""
    ends = [record.at_s for record in injected[1:]] + [float("inf")]
    for record, end_s in zip(injected, ends, strict=True):
        mine = [r for r in rows if r.ended_s is not None and record.at_s <= r.ended_s < end_s]
        answered = [r for r in mine if r.answered]
        record.seen = dict(seen(mine))
        record.redone = redone(mine)
        record.longest_s = max((r.latency_s or 0.0 for r in answered), default=0.0)


async def _compare(app: Application, books: Books, load: Load) -> list[str]:
    """Where the books of clients, ingresses and QAS differ by more than what nobody can know."""
    rows = load.rows + load.left
    dead = await last_looks(books.ingresses, INGRESS)
    dead_qas = await last_looks(books.qas, QAS)
    counted, told = sum_of(books.ingresses), sum_of(books.qas)
    unseen = ended_near(rows, load.start_s, dead)
    unheard = ended_near(rows, load.start_s, dead + dead_qas)
    print(
        f"clients, with those that leave: {dict(seen(rows))}; requests of ours {dict(app.probed)}; "
        f"{len(books.ingresses)} ingresses counted {dict(counted)}, {unseen} may be missing; "
        f"{len(books.qas)} QAS were told {dict(told)}, {unheard} may be missing"
    )
    return differences(rows, app.probed, counted, unseen) + untold(counted, told, unheard)


def _print(injected: list[Injected], load: Load) -> None:
    print(f"\nseed {SEED}, {'whole' if WHOLE else 'short'} form")
    for record in injected:
        print(record)
    print(
        f"{load.sent} requests in {load.now_s:.0f} s: {dict(seen(load.rows))}; "
        f"of clients that leave: {dict(seen(load.left))}"
    )
    if path := os.environ.get("PRISM_CHAOS_JSON"):
        result = {
            "seed": SEED,
            "sent": load.sent,
            "seen": seen(load.rows),
            "left": seen(load.left),
            "faults": [asdict(record) for record in injected],
        }
        Path(path).write_text(json.dumps(result, indent=2))


def _check(groups: list[list[Kind]], injected: list[Injected], load: Load) -> None:
    """In = answered + refused + aborted; nothing was lost that the fault before it does not explain."""
    assert load.sent == len(load.rows) + len(load.left)
    ends = Counter(row.outcome for row in load.rows)
    aborted = ends[Outcome.STREAM_ERROR] + ends[Outcome.TRUNCATED] + ends[Outcome.CONNECTION]
    assert len(load.rows) == ends[Outcome.ANSWERED] + ends[Outcome.REFUSED] + aborted, dict(ends)
    for group, record in zip(groups, injected, strict=True):
        allowed = {"answered"}.union(*(kind.costs for kind in group))
        if len(group) > 1:
            allowed.add(REFUSED)
        assert set(record.seen) <= allowed, f"{record.faults}: {record.seen}"


def test_after_random_faults_under_load_all_books_are_closed(deploy: Deploy) -> None:
    if WHOLE:
        pytest.importorskip("sglang")
        make_random_tiny()
    rng = random.Random(SEED)
    groups = drawn(rng)
    print(f"\nseed {SEED}:", "; ".join(" + ".join(k.name for k in group) for group in groups))
    if WHOLE:
        app = deploy(MIXED, MixedReplica)
    else:
        two = SIMULATED | {"replicas": SIMULATED["replicas"] | {"count": 2}}
        app = deploy(two, FaultyReplica)
    asyncio.run(ordeal(app, groups, rng))
