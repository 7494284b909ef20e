from __future__ import annotations

from collections import Counter
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from prism_ray.model import NO_GAP, Atom, DemandTable, Pick, Segment, Skeleton, Ticket
from prism_ray.policies import make_fair_scheduler, make_scheduler
from prism_ray.scheduling import Match, Scheduler
from prism_ray.tenancy import FairScheduler, TenantWeights

POLICIES = [
    ("fcfs", {}),
    ("qas", {"batch_max": 4, "q_cold": 1, "table_rows_max": 6}),
    ("qas", {"pioneer": True, "window_max": 5}),
]


class ColdCache:
    def match(self, path: tuple[Atom, ...]) -> Match:
        return Match(0, 0)


class WarmCache:
    """Has the first document of everything."""

    def match(self, path: tuple[Atom, ...]) -> Match:
        return Match(path[0].tokens, path[0].tokens)


def ticket(
    name: str, tenant: str = "a", documents: str = "xyz", tokens: int = 10, limit: int = 0
) -> Ticket:
    segments = tuple(Segment(f"{tenant}{d}".encode(), tokens, run=0, label=d) for d in documents)
    skeleton = Skeleton(None, segments, (NO_GAP,) * len(segments), private_tokens=5)
    return Ticket(name, skeleton, 0.0, max_new_tokens=limit, tenant=tenant.encode())


def dispatch(scheduler: Scheduler, most: int, replica: str = "r") -> tuple[list[Pick], DemandTable]:
    opened = scheduler.open_round({replica: ColdCache()})
    picks: list[Pick] = []
    while len(picks) < most and (pick := opened.peek(replica)) is not None:
        opened.take(replica, pick)
        picks.append(pick)
    return picks, opened.close().get(replica, DemandTable(0))


def tenants(picks: list[Pick]) -> str:
    return "".join(pick.ticket.tenant.decode() for pick in picks)


def backlog(scheduler: Scheduler, **requests: int) -> None:
    for tenant, number in requests.items():
        for index in range(number):
            scheduler.add(ticket(f"{tenant}{index}", tenant))


class TestTurns:
    def test_a_flood_does_not_keep_another_tenant_waiting(self) -> None:
        fair = make_fair_scheduler("fcfs")
        backlog(fair, a=50)
        dispatch(fair, 10)
        backlog(fair, b=2)
        picks, _ = dispatch(fair, 5)
        assert tenants(picks) == "babaa"

    def test_weights_come_from_the_tenants_names(self) -> None:
        fair = make_fair_scheduler("fcfs", weights=TenantWeights({"a": 3.0}))
        backlog(fair, a=40, b=40)
        picks, _ = dispatch(fair, 40)
        assert tenants(picks).count("a") == 30

    def test_what_is_cached_is_not_charged_but_the_output_limit_is(self) -> None:
        fair = make_fair_scheduler("fcfs")
        for n in range(20):
            fair.add(ticket(f"a{n}", "a", tokens=100, documents="x"))  # 5 of 105 to compute
            fair.add(ticket(f"b{n}", "b", tokens=5, documents="x", limit=10))  # 5 and 10
        opened = fair.open_round({"r": WarmCache()})
        taken = []
        for _ in range(20):
            pick = opened.peek("r")
            assert pick is not None
            opened.take("r", pick)
            taken.append(pick)
        opened.close()
        assert tenants(taken).count("a") == 15

    def test_turns_are_counted_over_all_replicas(self) -> None:
        fair = make_fair_scheduler("fcfs")
        backlog(fair, a=4, b=4)
        opened = fair.open_round({"r1": ColdCache(), "r2": ColdCache()})
        taken = []
        for replica in ("r1", "r2", "r1", "r2"):
            pick = opened.peek(replica)
            assert pick is not None
            opened.take(replica, pick)
            taken.append(pick)
        opened.close()
        assert tenants(taken) == "abab"

    def test_an_offer_that_another_replica_took_cannot_be_taken_again(self) -> None:
        fair = make_fair_scheduler("qas")
        backlog(fair, a=2)
        opened = fair.open_round({"r1": ColdCache(), "r2": ColdCache()})
        first, second = opened.peek("r1"), opened.peek("r2")
        assert first is not None
        assert second is not None
        assert first.ticket is second.ticket
        opened.take("r1", first)
        with pytest.raises(ValueError, match="offered last"):
            opened.take("r2", second)
        assert opened.peek("r2") is not None
        opened.close()


class TestSeparation:
    def test_equal_documents_of_two_tenants_share_no_bucket_and_no_counter(self) -> None:
        fair = make_fair_scheduler("qas")
        alone = make_scheduler("qas")
        for n in range(6):
            alone.add(ticket(f"b{n}", "b", documents="x"))
            fair.add(ticket(f"b{n}", "b", documents="x"))
            # The same text, and even (which digests rule out) the same segment ids.
            fair.add(Ticket(f"a{n}", ticket("", "b", documents="x").skeleton, 0.0, tenant=b"a"))
        mine = [p for p in dispatch(fair, 12)[0] if p.ticket.tenant == b"b"]
        for pick, expected in zip(mine, dispatch(alone, 6)[0], strict=True):
            assert (pick.signature, pick.score, pick.reason, pick.order) == (
                expected.signature,
                expected.score,
                expected.reason,
                expected.order,
            )

    def test_a_tenants_policy_hears_when_its_request_runs(self) -> None:
        scheduler = make_fair_scheduler("qas", {"active": "running"})
        scheduler.add(ticket("1", documents="x"))
        dispatch(scheduler, 1)
        assert scheduler.describe()["segments"][0]["active"] == 0
        scheduler.runs("1")
        scheduler.runs("nobody's")
        assert scheduler.describe()["segments"][0]["active"] == 1
        scheduler.check_integrity()

    def test_state_of_several_tenants_is_told_in_totals_only(self) -> None:
        fair = make_fair_scheduler("qas")
        fair.add(ticket("a1", "a"))
        assert fair.describe()["segments"]
        fair.add(ticket("b1", "b"))
        dispatch(fair, 1)
        assert fair.describe() == {"policy": "qas", "queued": 1, "active": 1, "tenants": 2}

    def test_only_the_tenants_that_were_busy_last_are_remembered(self) -> None:
        fair = FairScheduler(lambda: make_scheduler("qas"), idle_max=3)
        for n in range(50):
            fair.add(ticket(f"r{n}", f"t{n}"))
            dispatch(fair, 1)
            fair.finish(f"r{n}")
            fair.check_integrity()
        assert fair.describe()["tenants"] == 3


def test_parameters_are_checked_before_the_first_tenant_comes() -> None:
    with pytest.raises(ValueError, match="no parameter"):
        make_fair_scheduler("qas", {"kapa": 2})


requests = st.builds(
    ticket,
    name=st.just(""),
    tenant=st.sampled_from("abc"),
    documents=st.text("uvwxyz", max_size=4),
    tokens=st.integers(0, 60),
    limit=st.integers(0, 60),
)


def renamed(request: Ticket, name: str) -> Ticket:
    return Ticket(
        name,
        request.skeleton,
        request.arrival_s,
        max_new_tokens=request.max_new_tokens,
        tenant=request.tenant,
    )


def cost(request: Ticket) -> int:
    return max(1, request.skeleton.prompt_tokens) + request.max_new_tokens


@settings(max_examples=40, deadline=None)
@given(
    policy=st.sampled_from(POLICIES),
    arrivals=st.lists(requests, min_size=30, max_size=90),
    weights=st.fixed_dictionaries({"a": st.sampled_from([0.5, 1.0, 3.0])}),
    rounds=st.lists(st.integers(1, 6), min_size=3, max_size=12),
)
def test_shares_follow_the_weights_within_one_request_of_each(
    policy: tuple[str, dict[str, object]],
    arrivals: list[Ticket],
    weights: dict[str, float],
    rounds: list[int],
) -> None:
    fair = make_fair_scheduler(*policy, weights=TenantWeights(weights))
    for number, request in enumerate(arrivals):
        fair.add(renamed(request, f"r{number}"))
    largest = {
        t: max((cost(r) for r in arrivals if r.tenant == t), default=0) for t in (b"a", b"b")
    }
    served: Counter[bytes] = Counter()
    for most in rounds:
        left = Counter(waiting.tenant for waiting in fair.waiting())
        if min(left[b"a"], left[b"b"]) <= most:
            break  # from here on one of them may run out
        for pick in dispatch(fair, most)[0]:
            served[pick.ticket.tenant] += cost(pick.ticket)
        a, b = weights["a"], 1.0
        assert abs(served[b"a"] / a - served[b"b"] / b) <= largest[b"a"] / a + largest[b"b"] / b


@settings(max_examples=30, deadline=None)
@given(data=st.data(), policy=st.sampled_from(POLICIES))
def test_with_one_tenant_everything_is_as_without_tenants(
    data: st.DataObject, policy: tuple[str, dict[str, object]]
) -> None:
    fair, alone = make_fair_scheduler(*policy), make_scheduler(*policy)
    both: tuple[Scheduler, Scheduler] = (fair, alone)
    names, sent = count(), []
    for _ in range(data.draw(st.integers(1, 25))):
        match data.draw(
            st.sampled_from(["add", "add", "add", "cancel", "finish", "round", "round"])
        ):
            case "add":
                request = ticket(
                    f"r{next(names)}", documents=data.draw(st.text("uvwxyz", max_size=4))
                )
                at_head = data.draw(st.booleans())
                for scheduler in both:
                    scheduler.add(request, at_head=at_head)
            case "cancel" if len(alone):
                victim = data.draw(st.sampled_from(list(alone.waiting()))).request_id
                assert fair.cancel(victim) == alone.cancel(victim) is True
            case "finish" if sent:
                victim = sent.pop(data.draw(st.integers(0, len(sent) - 1)))
                assert fair.finish(victim) == alone.finish(victim) is True
            case "round":
                most, replica = data.draw(st.integers(0, 5)), data.draw(st.sampled_from("rs"))
                (picks, table), expected = (dispatch(s, most, replica) for s in both)
                assert (picks, table) == expected
                sent += [pick.ticket.request_id for pick in picks]
        assert fair.describe() == alone.describe()
        assert list(fair.waiting()) == list(alone.waiting())
        fair.check_integrity()


class Lives(RuleBasedStateMachine):
    """Requests of three tenants come, leave, are refused and finish; rounds over two replicas."""

    def __init__(self) -> None:
        super().__init__()
        self.fair: FairScheduler | None = None
        self.numbers = count()
        self.waiting: dict[str, Ticket] = {}
        self.sent: dict[str, Ticket] = {}
        self.versions: Counter[str] = Counter()

    @precondition(lambda self: self.fair is None)
    @rule(policy=st.sampled_from(POLICIES), weight=st.sampled_from([0.3, 1.0, 2.0]))
    def begin(self, policy: tuple[str, dict[str, object]], weight: float) -> None:
        name, params = policy
        weights = TenantWeights({"a": weight})
        self.fair = FairScheduler(lambda: make_scheduler(name, params), weights, idle_max=1)

    @precondition(lambda self: self.fair is not None)
    @rule(request=requests, number=st.integers(1, 4))
    def add(self, request: Ticket, number: int) -> None:
        assert self.fair is not None
        for _ in range(number):
            name = f"r{next(self.numbers)}"
            self.waiting[name] = renamed(request, name)
            self.fair.add(self.waiting[name])
        with pytest.raises(ValueError, match="already here"):
            self.fair.add(self.waiting[name])

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        assert self.fair is not None
        name = data.draw(st.sampled_from(sorted(self.waiting)))
        assert not self.fair.finish(name)
        assert self.fair.cancel(name)
        assert not self.fair.cancel(name)
        del self.waiting[name]

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), refused=st.booleans())
    def finish(self, data: st.DataObject, refused: bool) -> None:
        assert self.fair is not None
        name = data.draw(st.sampled_from(sorted(self.sent)))
        request = self.sent.pop(name)
        assert not self.fair.cancel(name)
        assert self.fair.finish(name)
        if refused:
            self.fair.add(request, at_head=True)
            self.waiting[name] = request

    @precondition(lambda self: self.fair is not None)
    @rule(asks=st.lists(st.sampled_from(["r", "s"]), max_size=8))
    def play(self, asks: list[str]) -> None:
        assert self.fair is not None
        opened = self.fair.open_round({"r": ColdCache(), "s": ColdCache()})
        left = dict(self.waiting)
        taken: Counter[str] = Counter()
        taken_now: list[str] = []
        for replica in asks:
            pick = opened.peek(replica)
            assert pick is opened.peek(replica)
            if pick is None:
                # Work conserving: nothing stays but what a policy's scan window (of 5) cannot see.
                gone = Counter(self.sent[name].tenant for name in taken_now)
                assert all(gone[waiting.tenant] >= 5 for waiting in left.values())
                continue
            opened.take(replica, pick)
            taken_now.append(pick.ticket.request_id)
            self.sent[pick.ticket.request_id] = left.pop(pick.ticket.request_id)
            taken[replica] += 1
        tables = opened.close()
        assert set(tables) == set(taken)
        for replica, table in tables.items():
            self.versions[replica] += 1
            assert table.version == self.versions[replica]
        self.waiting = left

    @precondition(lambda self: self.fair is not None and not self.sent)
    @rule()
    def lose_a_replica(self) -> None:
        assert self.fair is not None
        self.fair.forget("r")
        self.versions["r"] = 0

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        if self.fair is None:
            return
        self.fair.check_integrity()
        found = [waiting.request_id for waiting in self.fair.waiting()]
        assert sorted(found) == sorted(self.waiting)
        assert len(self.fair) == len(self.waiting)


Lives.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestLives = Lives.TestCase
