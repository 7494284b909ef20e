from __future__ import annotations

import pytest

from loadgen.virtual import Arrival, VirtualCluster
from prism_ray.dispatch import Dispatcher
from prism_ray.engine.cost import CostModel
from prism_ray.engine.limits import StepParams
from prism_ray.model import NO_GAP, Segment, Skeleton, Ticket
from prism_ray.placement import make_placement
from prism_ray.policies import make_scheduler

PARAMS = StepParams(pool_tokens=20_000, max_running=4, chunked_prefill_tokens=1000)
COST = CostModel(base_s=1.0)
"""Every step takes a second."""


def cluster(replicas: int = 1) -> VirtualCluster:
    placement = make_placement("single" if replicas == 1 else "round-robin")
    dispatcher = Dispatcher(make_scheduler("fcfs"), placement, "epoch")
    return VirtualCluster(dispatcher, PARAMS, COST, replicas=replicas, max_running=4)


def arrival(name: str, at_s: float, document: str, private: int = 10, output: int = 1) -> Arrival:
    skeleton = Skeleton(None, (Segment(document.encode(), 990, run=0),), (NO_GAP,), private)
    return Arrival(Ticket(name, skeleton, at_s, max_new_tokens=output), output)


def test_times_are_those_of_the_steps() -> None:
    served = cluster().run([arrival("q", 2.0, "x", output=3)])["q"]
    assert (served.decided_s, served.first_token_s, served.finished_s) == (2.0, 3.0, 5.0)
    assert served.ttft_s == 1.0


def test_a_later_request_finds_the_document_cached() -> None:
    served = cluster().run([arrival("q1", 0.0, "x"), arrival("q2", 1.5, "x")])
    assert served["q1"].cached_tokens == 0
    assert served["q2"].cached_tokens == 990
    assert served["q2"].replica == "replica-0"


def test_requests_wait_for_credit_and_all_are_served() -> None:
    made = cluster()
    served = made.run(arrival(f"q{n}", 0.0, f"doc {n}") for n in range(6))
    # Credit is two chunks: two prompts are sent, and one more whenever one is prefilled.
    assert [served[f"q{n}"].decided_s for n in range(6)] == [0.0, 0.0, 1.0, 2.0, 3.0, 4.0]
    assert made.now_s == 6.0
    made.dispatcher.check_integrity()
    assert made.dispatcher.sent_count == 0


def test_replicas_work_at_the_same_time() -> None:
    made = cluster(replicas=2)
    made.run(arrival(f"q{n}", 0.0, f"doc {n}") for n in range(6))
    assert made.now_s == 3.0


def test_the_same_arrivals_give_the_same_times() -> None:
    arrivals = [arrival(f"q{n}", 0.3 * n, f"doc {n % 3}", output=1 + n % 4) for n in range(30)]
    one, other = cluster().run(arrivals), cluster().run(arrivals)
    times = [(r.decided_s, r.first_token_s, r.finished_s) for r in one.values()]
    assert times == [(r.decided_s, r.first_token_s, r.finished_s) for r in other.values()]


def test_a_request_that_can_never_be_served_is_noticed() -> None:
    with pytest.raises(ValueError, match="exceed"):
        cluster().run([arrival("q", 0.0, "x", private=30_000)])
