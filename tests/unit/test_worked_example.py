"""docs/worked-example.md says what the product does: its numbers are read from the page and checked.

The page's inputs (parameters, requests) feed the scheduler and the cache; its results are compared
with what they answer. So a changed number on the page, or a changed behaviour, fails here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from prism_ray.dart import RETENTION, PrefixCache, path_keys, skeleton_anchors
from prism_ray.model import (
    NO_GAP,
    Atom,
    Demand,
    DemandTable,
    Order,
    Pick,
    Segment,
    SegmentKind,
    Skeleton,
    Ticket,
)
from prism_ray.policies import make_scheduler
from prism_ray.scheduling import Match, Scheduler

PAGE = Path(__file__).parents[2] / "docs" / "worked-example.md"
TEXT = PAGE.read_text(encoding="utf-8")
Row = dict[str, str]
NUMBER = r"\d[\d,]*(?:\.\d+)?"


def table(name: str) -> list[Row]:
    """Rows of the table behind ``<!-- table: name -->``, as header -> cell."""
    block = TEXT.split(f"<!-- table: {name} -->\n", 1)[1].split("\n\n", 1)[0]
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in block.splitlines()]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def number(text: str) -> float:
    return float(text.replace(",", ""))


def rounded(value: float, like: str) -> str:
    """``value`` written with as many decimals as ``like``."""
    return f"{value:,.{len(like.partition('.')[2])}f}"


PARAMS = {row["name"]: number(row["value"]) for row in table("parameters")}
SYSTEM_TOKENS, SEGMENT_TOKENS, PRIVATE_TOKENS = (
    int(PARAMS[f"{name}_tokens"]) for name in ("system", "segment", "private")
)
WEIGHTS = (PARAMS["w_active"], PARAMS["w_next"], PARAMS["w_global"])
WRITTEN = {row["request"]: row["segments as the client wrote them"] for row in table("requests")}
STATE = {row["request"]: row["state"] for row in table("requests")}


def policy_params() -> dict[str, float]:
    """The page's parameters that are the scheduler's, whole numbers as such."""
    names = ("w_active", "w_next", "w_global", "alpha_size", "beta_util")
    counts = ("kappa", "f_front", "q_cold", "batch_max")
    return {n: PARAMS[n] for n in names} | {n: int(PARAMS[n]) for n in counts}


class NothingCached:
    def match(self, path: tuple[Atom, ...]) -> Match:
        return Match(0, 0)


def ticket(request: str) -> Ticket:
    segments = tuple(
        Segment(name.encode(), SEGMENT_TOKENS, run=0) for name in WRITTEN[request].split()
    )
    system = Segment(b"s", SYSTEM_TOKENS, SegmentKind.SYSTEM)
    skeleton = Skeleton(system, segments, (NO_GAP,) * len(segments), PRIVATE_TOKENS)
    return Ticket(request, skeleton, arrival_s=0.0)


def letters(names: Iterable[bytes]) -> str:
    return " ".join(name.decode() for name in names)


def play(scheduler: Scheduler, takes: int) -> tuple[list[Pick], DemandTable]:
    opened = scheduler.open_round({"r0": NothingCached()})
    picks = []
    for _ in range(takes):
        pick = opened.peek("r0")
        assert pick is not None
        opened.take("r0", pick)
        picks.append(pick)
    return picks, opened.close()["r0"]


def situation() -> Scheduler:
    """The scheduler of section 1: active requests dispatched, the others waiting."""
    scheduler = make_scheduler("qas", policy_params())
    active = [name for name, state in STATE.items() if state == "active"]
    for name in active:
        scheduler.add(ticket(name))
    play(scheduler, len(active))
    for name, state in STATE.items():
        if state == "queued":
            scheduler.add(ticket(name))
    return scheduler


def segment_rows() -> dict[str, dict[str, Any]]:
    rows = situation().describe(top=100)["segments"]
    return {bytes.fromhex(row["segment"]).decode(): row for row in rows}


def orders() -> dict[str, Order]:
    """How each request is written: all waiting ones, picked in one round; the active one natively."""
    picks, _ = play(situation(), sum(state == "queued" for state in STATE.values()))
    native = {name: ticket(name).skeleton.native_order for name in WRITTEN}
    return native | {p.ticket.request_id: p.order for p in picks}


def written_as(request: str, order: Order) -> str:
    return letters(ticket(request).skeleton.segments[i].id for i in order)


# Equations (7) to (12)


def test_the_counters_are_what_the_scheduler_counts() -> None:
    counted = {name: (r["active"], r["queued"]) for name, r in segment_rows().items()}
    assert {r["segment"]: (int(r["A"]), int(r["G"])) for r in table("counters")} == counted


def test_the_requests_named_beside_a_counter_are_those_that_contain_the_segment() -> None:
    for row in table("counters"):
        containing = [name for name, text in WRITTEN.items() if row["segment"] in text.split()]
        assert re.findall(r"q\d", row["who"]) == containing


def test_requests_are_written_as_the_scheduler_writes_them() -> None:
    rows = table("alignment")
    assert [row["request"] for row in rows] == [n for n, s in STATE.items() if s == "queued"]
    for row in rows:
        name = row["request"]
        assert row["written by the client"] == WRITTEN[name]
        assert row["written now"] == written_as(name, orders()[name])
        front = row["written now"].split()[: int(PARAMS["f_front"])]
        assert row["two strongest"].split() == front


def test_buckets_hold_the_requests_that_the_scheduler_puts_there() -> None:
    picks, _ = play(situation(), 5)
    rows = table("buckets")
    for pick in picks:
        home = [r for r in rows if pick.ticket.request_id in r["requests, oldest first"].split()]
        assert [r["signature"] for r in home] == [letters(pick.signature)]
    for row in rows:
        members = row["requests, oldest first"].split()
        assert members == sorted(members)
        union = {segment for name in members for segment in WRITTEN[name].split()}
        assert row["R_b"].split() == sorted(union)


def test_scores_and_their_order_are_the_scheduler_s() -> None:
    rows = table("scores")
    buckets = situation().describe()["buckets"]
    assert [row["signature"] for row in rows] == [
        " ".join(b["signature"]) for b in labelled(buckets)
    ]
    for row, bucket in zip(rows, buckets, strict=True):
        assert int(row["size"]) == bucket["size"]
        assert row["Score"] == rounded(bucket["score"], like=row["Score"])
        utility = (bucket["score"] - PARAMS["alpha_size"] * bucket["size"]) / PARAMS["beta_util"]
        assert row["U"] == rounded(utility, like=row["U"])
    assert [int(row["place"]) for row in rows] == [1, 2, 3, 4]


def labelled(buckets: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Signatures as letters, whether they come as labels or as digests in hex."""

    def letter(name: str) -> str:
        return name if len(name) == 1 else bytes.fromhex(name).decode()

    return [{**b, "signature": [letter(name) for name in b["signature"]]} for b in buckets]


def test_priorities_of_the_hot_batches_add_up_to_the_utilities() -> None:
    utilities = {row["signature"]: row["U"] for row in table("scores")}
    members = {r["signature"]: r["requests, oldest first"].split() for r in table("buckets")}
    rows = table("hot batch")
    counted = segment_rows()
    for row in rows:
        batch = members[row["signature"]][: int(PARAMS["batch_max"] - PARAMS["q_cold"])]
        containing = sum(row["segment"] in WRITTEN[name].split() for name in batch)
        assert int(row["N"]) == containing
        counters = counted[row["segment"]]
        assert (int(row["A"]), int(row["G"])) == (counters["active"], counters["queued"])
        assert number(row["P"]) == weighted(row)
    for signature, utility in utilities.items():
        values = [number(row["P"]) for row in rows if row["signature"] == signature]
        assert utility == rounded(sum(values) / len(values), like=utility)


def weighted(row: Row) -> float:
    return sum(w * number(row[key]) for w, key in zip(WEIGHTS, ("A", "N", "G"), strict=True))


def test_dispatches_follow_in_the_lanes_that_the_page_says() -> None:
    rows = table("dispatches")
    picks, _ = play(situation(), len(rows))
    cold, size = int(PARAMS["q_cold"]), int(PARAMS["batch_max"])
    share = f"{cold}/{size}"
    assert list(rows[0])[:3] == ["d", f"⌊(d+1)·{share}⌋", f"⌊d·{share}⌋"]
    for place, (row, pick) in enumerate(zip(rows, picks, strict=True)):
        said = (row["lane"], row["request"], row["signature"])
        assert said == (pick.lane.value, pick.ticket.request_id, letters(pick.signature))
        assert row["Score"] == rounded(pick.score, like=row["Score"])
        d, due, paid = (int(cell) for cell in list(row.values())[:3])
        assert (d, due, paid) == (place + 1, (d + 1) * cold // size, d * cold // size)


def test_the_demand_table_is_the_one_the_round_returns() -> None:
    _, demand = play(situation(), len(table("dispatches")))
    rows = table("demand")
    assert {r["segment"]: number(r["P̂"]) for r in rows} == {
        row.segment.decode(): row.priority for row in demand.rows
    }
    assert [number(r["P̂"]) for r in rows] == [row.priority for row in demand.rows]
    batch = [row["request"] for row in table("dispatches")]
    for row in rows:
        assert number(row["P̂"]) == weighted(row)
        in_batch = any(row["segment"] in WRITTEN[name].split() for name in batch)
        assert row["N counts"] == ("the batch" if in_batch else "what comes next")


# Equation (13), and the hits of (3)


def prompt(request: str, order: Order) -> tuple[Atom, ...]:
    private = Atom(request.replace("q", "p").encode(), PRIVATE_TOKENS)
    return (*ticket(request).skeleton.path(order), private)


def prefill(cache: PrefixCache, request: str, order: Order) -> int:
    """Run one prompt through the cache; the tokens that it found there."""
    path = prompt(request, order)
    cached = cache.peek(path)
    cache.insert(path, anchors=skeleton_anchors(ticket(request).skeleton, order))
    return cached


def cache_after_the_batch(retention: str = "dart") -> PrefixCache:
    """The pool of section 8, full, with the page's demand table."""
    cache = PrefixCache(
        retention,
        pool_tokens=int(number(table("evictions")[-1]["tokens free after it"])),
        protect_anchors=int(PARAMS["protect_anchors"]),
    )
    cache.waits("q4", path_keys(prompt("q4", orders()["q4"])))
    for row in table("hits")[:-1]:
        prefill(cache, row["request"], orders()[row["request"]])
    rows = tuple(Demand(r["segment"].encode(), number(r["P̂"])) for r in table("demand"))
    assert cache.hint(DemandTable(version=1, rows=rows))
    return cache


def test_nodes_are_evicted_in_the_order_of_the_page_with_its_keys() -> None:
    cache = cache_after_the_batch()
    rows = table("evictions")
    order = cache.eviction_order()
    assert [r["node, from the root"] for r in rows] == [
        letters(piece.id for piece in node.path()) for node in order
    ]
    freed = 0
    for step, (row, node) in enumerate(zip(rows, order, strict=True), start=1):
        freed += node.tokens
        key = (int(row["class"]), number(row["P̂"]), int(row["last"]))
        assert key == RETENTION["dart"](cache.demand).key(node)
        assert (int(row["step"]), number(row["tokens free after it"])) == (step, freed)
    assert freed == cache.tree.total_tokens


def test_making_room_for_the_next_request_stops_where_the_page_says() -> None:
    found = re.search(
        rf"new tokens of q4 = .* = ({NUMBER})\n```\n\nand eviction stops after step (\d+), "
        rf"with ({NUMBER}) free",
        TEXT,
    )
    assert found is not None
    needed, stop, free = found.groups()
    cache = cache_after_the_batch()
    path = prompt("q4", orders()["q4"])
    cached = cache.match(path)
    assert sum(atom.tokens for atom in path) - cached.tokens == number(needed)
    cache.lock(cached.node)
    gone = cache.evict(int(number(needed)))
    assert (len(gone.nodes), gone.tokens) == (int(stop), number(free))


def test_lru_would_begin_with_a_wanted_branch() -> None:
    first = cache_after_the_batch("lru").eviction_order()[0]
    assert letters(piece.id for piece in first.pieces) == "d a p5"
    assert "SGLang's LRU would have begun with `d`, `a` and `p5`\nbelow `s`" in TEXT


def test_hits_are_what_the_cache_finds() -> None:
    aligned, native = (PrefixCache("dart", pool_tokens=10_000) for _ in range(2))
    *rows, total = table("hits")
    assert [r["request"] for r in rows[1:]] == [r["request"] for r in table("dispatches")]
    sums = [0, 0, 0]
    for row in rows:
        name, skeleton = row["request"], ticket(row["request"]).skeleton
        found = [
            skeleton.prompt_tokens,
            prefill(native, name, skeleton.native_order),
            prefill(aligned, name, orders()[name]),
        ]
        assert [number(cell) for cell in list(row.values())[1:]] == found
        sums = [a + b for a, b in zip(sums, found, strict=True)]
    assert [number(cell) for cell in list(total.values())[1:]] == sums


# The equations written out


def equations() -> list[str]:
    blocks = re.findall(r"```equations\n(.*?)```", TEXT, flags=re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


def named(prefix: str) -> list[str]:
    return [line for line in equations() if line.startswith(prefix)]


@pytest.mark.parametrize("line", equations())
def test_both_sides_of_an_equation_are_equal(line: str) -> None:
    _, expression, result = line.rsplit(" = ", 2)
    python = expression.replace(",", "").replace("·", "*")
    assert re.fullmatch(r"[\d.+\-*/() ]+", python), f"not arithmetic: {expression}"
    assert result == rounded(eval(python), like=result)


@pytest.mark.parametrize("line", named("P"))
def test_a_priority_is_made_of_the_weights_and_counters(line: str) -> None:
    """P(r; batch), P(r; ∅) and P̂(r): w_a, A, w_n, N, w_g, G, in this order."""
    name, expression, _ = line.split(" = ")
    segment = name[name.index("(") + 1]
    counters = segment_rows()[segment]
    if name.startswith("P̂"):
        coming = next(int(r["N"]) for r in table("demand") if r["segment"] == segment)
    else:
        batch = re.findall(r"q\d", name)
        assert " ".join(batch) in ["", *(r["requests, oldest first"] for r in table("buckets"))]
        coming = sum(segment in WRITTEN[request].split() for request in batch)
    active, following, queued = WEIGHTS
    expected = [active, counters["active"], following, coming, queued, counters["queued"]]
    assert [number(n) for n in re.findall(NUMBER, expression)] == expected


@pytest.mark.parametrize("row", table("scores"), ids=lambda row: row["signature"])
def test_a_bucket_s_utility_and_score_are_made_of_its_priorities(row: Row) -> None:
    name = row["signature"]
    values = [number(r["P"]) for r in table("hot batch") if r["signature"] == name]
    (utility,), (score,) = named(f"U({name})"), named(f"Score({name})")
    assert [number(n) for n in re.findall(NUMBER, utility)] == [
        *values,
        len(values),
        number(row["U"]),
    ]
    assert [number(n) for n in re.findall(NUMBER, score)] == [
        PARAMS["alpha_size"],
        number(row["size"]),
        PARAMS["beta_util"],
        sum(values),
        len(values),
        number(row["Score"]),
    ]


def test_the_remaining_equations_use_the_numbers_of_the_tables() -> None:
    total = table("hits")[-1]
    prompt_tokens, native, aligned = list(total.values())[1:]
    size, cold = (str(int(PARAMS[name])) for name in ("batch_max", "q_cold"))
    segments = len(WRITTEN["q4"].split())
    expected = {
        f"hot places = {size} - {cold} = ",
        f"new tokens of q4 = {segments}·{SEGMENT_TOKENS} + {PRIVATE_TOKENS} = ",
        f"hit rate h0, as written = {native} / {prompt_tokens} = ",
        f"hit rate h1, aligned = {aligned} / {prompt_tokens} = ",
        f"tokens computed, as written = {prompt_tokens} - {native} = ",
        f"tokens computed, aligned = {prompt_tokens} - {aligned} = ",
        f"μ1 / μ0 = ({prompt_tokens} - {native}) / ({prompt_tokens} - {aligned}) = ",
    }
    rest = [line for line in equations() if not line.startswith(("P", "U", "Score"))]
    assert {line.rpartition(" = ")[0] + " = " for line in rest} == expected
