"""What Serve's autoscaling is told and asks: the share of the queue on its way, and Serve's own types."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from typing import Any

from ray import cloudpickle
from ray.serve._private.autoscaling_state import _resolve_policy_callable
from ray.serve.config import AutoscalingConfig, AutoscalingContext

from prism_ray.application import assemble
from prism_ray.config import PrismConfig
from prism_ray.scaling import ReplicaWork, WorkMeter
from prism_ray.serving.autoscaling import QueuedWork, as_stats, replica_count, work_stats

from .actor_bench import Bench, hello, settle

SCALED: dict[str, Any] = {
    "extends": "simulated",
    "replicas": {"count": 2, "autoscaling": {"max_count": 5, "up_delay_s": 3.0, "window_s": 20.0}},
    "placement": {"policy": "least-loaded"},
}
BUSY = ReplicaWork(queued_tokens=9_000, owed_tokens=1_000, prefill_tokens_per_s=1_000, busy=1.0)


def context(told: Mapping[str, ReplicaWork | None], target: int) -> AutoscalingContext:
    """What Serve's controller would pass: the window's means by replica."""
    metrics: dict[str, dict[str, float]] = {}
    for replica, work in told.items():
        for name, value in as_stats(work).items() if work else ():
            metrics.setdefault(name, {})[replica] = value
    return AutoscalingContext(
        deployment_id=None,
        deployment_name="Replica",
        app_name="default",
        current_num_replicas=len(told),
        target_num_replicas=target,
        running_replicas=list(told),
        total_num_requests=0,
        total_queued_requests=0,
        aggregated_metrics=metrics,
        raw_metrics={},
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=9,
        policy_state={},
        last_scale_up_time=None,
        last_scale_down_time=None,
        current_time=0.0,
        config=None,
    )


class TestPolicy:
    def test_serves_context_becomes_the_pure_functions_arguments(self) -> None:
        policy = QueuedWork(least=1, most=9)
        assert policy(context({"a": BUSY}, 1)) == (5, {})
        assert policy(context({"a": BUSY, "new": None}, 2)) == (5, {})
        assert policy(context({"a": None}, 3)) == (3, {})
        assert policy(context({}, 2)) == (2, {})

    def test_serve_builds_it_from_the_config_with_our_targets_and_its_own_delays(self) -> None:
        config = replica_count(PrismConfig.load(SCALED).replicas)["autoscaling_config"]
        assert isinstance(config, AutoscalingConfig)
        assert (config.min_replicas, config.max_replicas) == (2, 5)
        assert (config.upscale_delay_s, config.downscale_delay_s) == (3.0, 300.0)
        assert (config.look_back_period_s, config.metrics_interval_s) == (20.0, 4.0)
        assert config.initial_replicas is None, "an update must not bring the number back"
        policy = _resolve_policy_callable(config.policy)
        assert policy(context({"a": BUSY, "b": BUSY}, 2))[0] == 5

    def test_the_controller_can_load_it_from_what_serve_ships(self) -> None:
        config = replica_count(PrismConfig.load(SCALED).replicas)["autoscaling_config"]
        shipped = cloudpickle.loads(
            pickle.loads(pickle.dumps(config.policy._serialized_policy_def))
        )
        assert shipped(least=1, most=9)(context({"a": BUSY}, 1)) == (5, {})

    def test_without_autoscaling_there_is_a_number(self) -> None:
        assert replica_count(PrismConfig.load("simulated").replicas) == {"num_replicas": 1}

    def test_an_application_is_built_without_a_warning(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            application = assemble(PrismConfig.load(SCALED))
        _, _, replicas = application._bound_deployment.init_args
        scaled = replicas._bound_deployment._deployment_config.autoscaling_config
        assert (scaled.min_replicas, scaled.max_replicas) == (2, 5)


class TestStatistics:
    def stats(self, *queued: int | None, taken_slots: float = 0.25) -> dict[str, float]:
        meter = WorkMeter()
        meter.began(0.0)
        meter.ended(1_000, 400, 1.0)  # six tenths were cached
        meter.busy_share(0.0)
        return work_stats(meter, queued, owed_tokens=70, taken_slots=taken_slots, now_s=2.0)

    def test_what_waits_counts_without_what_will_be_cached(self) -> None:
        assert self.stats(500) == {
            "prism_queued_tokens": 200.0,
            "prism_owed_tokens": 70.0,
            "prism_prefill_tokens_per_s": 400.0,
            "prism_busy": 0.25,
        }

    def test_several_qas_have_a_window_each(self) -> None:
        assert self.stats(500, 1_000)["prism_queued_tokens"] == 600.0

    def test_nothing_is_said_while_one_does_not_answer(self) -> None:
        assert self.stats() == self.stats(None) == self.stats(500, None) == {}

    def test_slots_that_are_taken_are_busy_too(self) -> None:
        assert self.stats(0, taken_slots=0.75)["prism_busy"] == 0.75
        assert self.stats(0, taken_slots=1.5)["prism_busy"] == 1.0, "more than its share by n > 1"


class TestShare:
    async def test_a_snapshot_is_answered_with_the_replicas_share_of_the_window(self) -> None:
        async with Bench() as bench:
            for replica in "ab":
                await bench.actor.hello(hello(replica))
            waiting = [bench.submit(f"q{n}") for n in range(9)]
            await settle()
            sent = sum(task.done() for task in waiting)
            assert 0 < sent < 9
            await bench.report("a", snapshot=True)
            assert bench.queued_tokens == (9 - sent) * 60 // 2
            await bench.report("a")
            assert bench.queued_tokens is None
            for task in waiting:
                task.cancel()

    async def test_one_that_drains_has_no_share_and_the_others_have_all_of_it(self) -> None:
        async with Bench() as bench:
            for replica in "ab":
                await bench.actor.hello(hello(replica))
            waiting = [bench.submit(f"q{n}") for n in range(9)]
            await settle()
            await bench.actor.ping("ingress", frozenset("b"))  # Serve stops a
            await bench.report("a", snapshot=True)
            assert bench.queued_tokens == 0
            await bench.report("b", snapshot=True)
            assert bench.queued_tokens == 60 * sum(not task.done() for task in waiting)
            for task in waiting:
                task.cancel()

    async def test_with_homes_it_is_what_waits_at_home(self) -> None:
        async with Bench(placement={"policy": "e2"}) as bench:
            for replica in "ab":
                await bench.actor.hello(hello(replica))
            waiting = [bench.submit(f"shared-{n}") for n in range(12)]
            await settle()
            shares = []
            for replica in "ab":
                await bench.report(replica, snapshot=True)
                shares.append(bench.queued_tokens)
            left = 60 * sum(not task.done() for task in waiting)
            assert left > 0
            assert sum(share or 0 for share in shares) == left
            told = (await bench.actor.state(0))["replicas"]
            assert [replica["queued_tokens"] for replica in told] == shares
            for task in waiting:
                task.cancel()
