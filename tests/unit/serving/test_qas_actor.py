"""The QAS actor's message handling, without Ray: what is late, lost, doubled or silent."""

from __future__ import annotations

import asyncio

import pytest

from prism_ray.config_errors import ConfigError
from prism_ray.model import Decision
from prism_ray.serving.messages import SubmitError, Undecided
from prism_ray.serving.meters import Counts
from prism_ray.serving.qas_channel import LATE_S

from .actor_bench import Bench, hello, settle


async def test_a_ticket_is_decided_and_its_plan_delivered() -> None:
    async with Bench() as bench:
        await bench.actor.hello(hello("r"))
        decision = await asyncio.wait_for(bench.submit("a"), 1.0)
        assert isinstance(decision, Decision)
        delivery = await bench.plans("r")
        assert delivery is not None
        assert [e.request_id for p in delivery.plans for e in p.entries] == ["a"]
        assert await bench.report("r", "a")
        books = await bench.check()
        assert books["sent"] == books["waiting"] == books["queued_tokens"] == 0


async def test_without_a_replica_a_new_request_is_refused_and_an_older_one_waits() -> None:
    async with Bench() as bench:
        assert await bench.submit("new") == Undecided(SubmitError.NO_REPLICA)
        again = bench.submit("again", attempt=1)
        await settle()
        assert not again.done()
        await bench.actor.hello(hello("r"))
        assert isinstance(await asyncio.wait_for(again, 1.0), Decision)


async def test_what_waits_without_any_replica_is_refused_in_the_end() -> None:
    async with Bench() as bench:
        again = bench.submit("again", attempt=1)
        await settle()
        bench.tidy(59.0)
        assert not again.done()
        bench.tidy(2.0)
        assert await again == Undecided(SubmitError.NO_REPLICA)
        assert (await bench.check())["futures"] == 0


class TestAttempts:
    async def test_a_newer_attempt_answers_the_older_one_and_takes_its_place(self) -> None:
        async with Bench() as bench:
            old = bench.submit("a", attempt=1)
            await settle()
            new = bench.submit("a", attempt=2)
            await settle()
            assert await old == Undecided(SubmitError.STALE_ATTEMPT)
            assert (await bench.check())["waiting"] == 1
            assert await bench.submit("a", attempt=1) == Undecided(SubmitError.STALE_ATTEMPT)
            assert not new.done()
            assert (await bench.check())["futures"] == 1

    async def test_a_newer_attempt_voids_the_one_that_was_sent(self) -> None:
        async with Bench() as bench:
            await bench.actor.hello(hello("r"))
            await bench.submit("a", attempt=1)
            delivery = await bench.plans("r")
            assert delivery is not None
            await bench.submit("a", attempt=4)
            delivery = await bench.plans("r", read_version=1)
            assert delivery is not None
            assert delivery.voided == (("a", 1),)
            assert [e.attempt for p in delivery.plans for e in p.entries] == [4]
            await bench.check()

    async def test_a_late_cancellation_leaves_a_newer_attempt_alone(self) -> None:
        async with Bench() as bench:
            await bench.actor.hello(hello("r"))
            await bench.submit("a", attempt=1)
            await bench.actor.cancel("a", 0)
            assert (await bench.check())["sent"] == 1
            await bench.actor.cancel("a", 1)
            delivery = await bench.plans("r")
            assert delivery is not None
            assert delivery.voided == (("a", 1),)
            # The books close when the replica says that it holds nothing of it any more.
            assert (await bench.check())["sent"] == 1

    async def test_a_cancellation_that_overtakes_its_ticket_still_counts(self) -> None:
        async with Bench() as bench:
            await bench.actor.hello(hello("r"))
            await bench.actor.cancel("a", 1)
            assert await bench.submit("a", attempt=1) == Undecided(SubmitError.CANCELLED)
            assert isinstance(await bench.submit("a", attempt=2), Decision)
            await bench.actor.cancel("b", 0)
            assert isinstance(await bench.submit("b", attempt=1), Decision)

    async def test_cancelling_what_waits_answers_it_and_leaves_nothing(self) -> None:
        async with Bench() as bench:
            waiting = bench.submit("a", attempt=1)
            await settle()
            await bench.actor.cancel("a", 1)
            assert await waiting == Undecided(SubmitError.CANCELLED)
            books = await bench.check()
            assert books["futures"] == books["queued_tokens"] == 0
            assert (await bench.actor.tables())["cancelled_early"] == 0


async def test_a_deadline_ends_the_wait_when_it_is_due_and_not_later() -> None:
    async with Bench() as bench:
        late = bench.submit("a", attempt=1, deadline_s=0.5)
        await settle()
        bench.now += 0.4
        bench.actor._wake.set()
        await settle()
        assert not late.done()
        bench.now += 0.2  # the loop's own timer would do this; here the clock is ours
        bench.actor._wake.set()
        assert await asyncio.wait_for(late, 0.1) == Undecided(SubmitError.DEADLINE)
        assert (await bench.check())["futures"] == 0
        assert (await bench.actor.tables())["deadlines"] == 0


class TestIngresses:
    async def test_the_tickets_of_a_silent_ingress_leave_and_only_they(self) -> None:
        async with Bench() as bench:
            dead = bench.submit("a", attempt=1, ingress="dead")
            alive = bench.submit("b", attempt=1, ingress="alive")
            await settle()
            bench.now += 4.0
            await bench.actor.ping("alive", frozenset())
            bench.tidy(2.0)
            assert await dead == Undecided(SubmitError.FORGOTTEN)
            assert not alive.done()
            assert (await bench.actor.tables())["ingresses"] == 1

    async def test_a_pause_of_the_actor_itself_is_nobodys_silence(self) -> None:
        async with Bench() as bench:
            await bench.actor.hello(hello("r"))
            await bench.actor.ping("alive", frozenset({"r"}))
            waiting = bench.submit("a", attempt=1, ingress="alive")
            await asyncio.wait_for(waiting, 1.0)
            await settle()
            bench.now += 30.0
            await asyncio.sleep(0.3)  # housekeeping notices how late it is
            assert (await bench.actor.tables())["ingresses"] == 1
            assert (await bench.actor.ping("alive", frozenset({"r"}))).replicas == ("r",)


class TestReplicas:
    async def test_one_that_a_call_found_dead_gets_nothing_until_it_is_heard_again(self) -> None:
        async with Bench() as bench:
            await bench.actor.hello(hello("r"))
            await bench.submit("a")
            await bench.actor.replica_gone("r")
            waiting = bench.submit("b")
            await settle()
            assert not waiting.done()
            assert (await bench.actor.ping()).replicas == ()
            assert (await bench.actor.ping()).attached == ("r",)
            assert await bench.report("r"), "it keeps its books and its line"
            decision = await asyncio.wait_for(waiting, 1.0)
            assert isinstance(decision, Decision)
            assert (await bench.check())["sent"] == 2

    async def test_one_in_doubt_gets_nothing_new_only_if_qas_has_not_heard_it_either(self) -> None:
        async with Bench() as bench:
            await bench.actor.hello(hello("r"))
            bench.now += LATE_S - 0.01
            await bench.actor.replica_doubted("r")
            assert (await bench.actor.ping()).replicas == ("r",)
            bench.now += 0.01
            assert (await bench.actor.ping()).replicas == ("r",), "lateness alone is nothing"
            await bench.actor.replica_doubted("r")
            assert (await bench.actor.ping()).replicas == ()
            await bench.report("r")
            assert (await bench.actor.ping()).replicas == ("r",)

    async def test_one_that_serve_takes_away_gets_nothing_new_and_finishes_what_it_has(
        self,
    ) -> None:
        async with Bench() as bench:
            await bench.actor.hello(hello("r"))
            await bench.actor.ping("i", frozenset({"r"}))
            await bench.submit("a")
            await bench.actor.ping("i", frozenset({"other"}))
            waiting = bench.submit("b")
            await settle()
            assert not waiting.done()
            assert await bench.report("r", "a")
            books = await bench.check()
            assert (books["sent"], books["waiting"]) == (0, 1)
            await bench.actor.ping("i", frozenset({"r"}))
            assert isinstance(await asyncio.wait_for(waiting, 1.0), Decision)

    async def test_while_one_ingress_still_knows_it_a_replica_is_not_taken_away(self) -> None:
        async with Bench() as bench:
            await bench.actor.hello(hello("r"))
            await bench.actor.ping("early", frozenset({"s"}))
            await bench.actor.ping("late", frozenset({"r", "s"}))
            await bench.actor.ping("new", frozenset())
            assert (await bench.actor.ping("early", frozenset({"s"}))).replicas == ("r",)

    async def test_a_silent_one_is_paused_and_later_its_books_are_closed(self) -> None:
        async with Bench() as bench:
            await bench.actor.hello(hello("r"))
            await bench.submit("a")
            bench.tidy(3.5)
            assert (await bench.actor.ping()).replicas == ()
            assert (await bench.check())["sent"] == 1
            bench.tidy(7.0)
            assert (await bench.actor.ping()).attached == ()
            assert (await bench.check())["sent"] == 0
            assert not await bench.report("r"), "it is told to say hello"
            assert await bench.plans("r") is None

    async def test_one_that_says_hello_again_begins_with_empty_books(self) -> None:
        async with Bench() as bench:
            await bench.actor.hello(hello("r"))
            await bench.submit("a")
            poll = asyncio.ensure_future(bench.plans("r", read_version=1))
            await settle()
            await bench.actor.hello(hello("r", life=2))
            await poll
            assert (await bench.check())["sent"] == 0
            assert not await bench.report("r", "a", life=1), "the old life is over"
            assert isinstance(await asyncio.wait_for(bench.submit("b"), 1.0), Decision)
            delivery = await bench.plans("r", life=2)
            assert delivery is not None
            assert [p.version for p in delivery.plans] == [1]
            assert await bench.report("r", life=2, snapshot=True, sequence=1)
            await bench.check()

    async def test_a_report_that_comes_twice_counts_once(self) -> None:
        async with Bench() as bench:
            await bench.actor.hello(hello("r"))
            await bench.submit("a")
            assert await bench.report("r", "a", sequence=1)
            assert await bench.report("r", "a", sequence=1)
            told = (await bench.actor.state())["telemetry"]
            assert told["prompt_tokens_total"] == 60

    async def test_placements_and_what_goes_by_its_age_are_counted(self) -> None:
        scheduler = {"policy": "fcfs", "round_interval_s": 0.0}
        async with Bench(scheduler=scheduler, placement={"policy": "e2"}) as bench:
            await bench.actor.hello(hello("r"))
            for name in ("a", "b"):
                assert isinstance(await bench.submit(name), Decision)
            text = (await bench.actor.metrics(Counts())).decode()
            assert 'prism_placements_total{kind="explore",placement="e2"} 2.0' in text
            assert 'prism_starvation_promotions_total{policy="fcfs"} 2.0' in text

    async def test_plans_come_again_until_they_are_acknowledged(self) -> None:
        async with Bench() as bench:
            await bench.actor.hello(hello("r"))
            await bench.submit("a")
            for _ in range(2):
                delivery = await bench.plans("r")
                assert delivery is not None
                assert [p.version for p in delivery.plans] == [1]

    async def test_voided_entries_of_one_that_never_polls_stay_bounded(self) -> None:
        async with Bench() as bench:
            await bench.actor.hello(hello("r"))
            for number in range(3000):
                bench.actor._replicas.void("r", f"r{number}", 0)
            delivery = await bench.plans("r")
            assert delivery is not None
            assert len(delivery.voided) == 1024
            assert delivery.voided[-1] == ("r2999", 0)


class TestTuning:
    async def test_limits_and_round_interval_change_while_running(self) -> None:
        async with Bench() as bench:
            await bench.actor.hello(hello("r"))
            await bench.actor.replica_gone("r")  # so that all have to wait
            await bench.actor.tune(
                {"scheduler": {"round_interval_s": 0.5}, "limits": {"queue_requests": 1}}
            )
            assert bench.actor._dispatcher.round_interval_s == 0.5
            first = bench.submit("a")
            await settle()
            refused = await bench.submit("b")
            assert isinstance(refused, Undecided)
            assert refused.error is SubmitError.QUEUE_FULL
            await bench.actor.tune({})
            assert bench.actor._dispatcher.round_interval_s == 0.0
            second = bench.submit("c")
            await settle()
            assert not first.done()
            assert not second.done()

    async def test_a_wrong_user_config_changes_nothing(self) -> None:
        async with Bench() as bench:
            with pytest.raises(ConfigError, match=r"scheduler\.policy"):
                await bench.actor.tune({"scheduler": {"policy": "fcfs"}})
            assert bench.actor._config == bench.actor._deployed
