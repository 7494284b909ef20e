"""The simulated half of the validation: the same arrivals through virtual time, aborts included."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from loadgen.real.cluster import RealArrival
from loadgen.virtual import Arrival, Delays, VirtualCluster
from prism_ray.dispatch import Dispatcher, Place
from prism_ray.engine.base import EngineInfo
from prism_ray.engine.cost import CostModel
from prism_ray.engine.limits import StepParams
from prism_ray.model import Completion
from prism_ray.placement import make_placement
from prism_ray.policies import make_scheduler


class LeavingClients(VirtualCluster):
    """A virtual cluster whose clients leave: in the window they are forgotten, in the engine aborted."""

    def leave_at(self, at_s: float, request_id: str) -> None:
        """The client of a request leaves at ``at_s``, if it is not served by then."""
        self._at(at_s, partial(self._leave, request_id))

    def _leave(self, request_id: str) -> None:
        served = self.served[request_id]
        if served.finished_s is not None:
            return
        if self.dispatcher.place_of(request_id) is Place.WAITING:
            self.dispatcher.cancel(request_id)
            return
        self._later(self.delays.plan_s, partial(self._abort, served.replica, request_id))

    def _abort(self, replica: str, request_id: str) -> None:
        ended = self.engines[replica].model.abort(request_id)
        if ended is not None:
            self.served[request_id].finished_s = self.now_s
            report = partial(
                self._report, replica, [], (), [Completion(request_id, 0, ended.outcome)]
            )
            self._later(self.delays.credit_s, report)


def params_of(info: EngineInfo, retention: str) -> StepParams:
    """The limits of a real engine as the step model takes them."""
    return StepParams(
        pool_tokens=info.pool_tokens,
        context_length=info.context_length,
        max_running=info.max_running,
        chunked_prefill_tokens=info.chunked_prefill_tokens,
        max_prefill_tokens=info.max_prefill_tokens,
        page_size=info.page_size,
        retention=retention,
        refresh_waiting_prefixes=True,
    )


def simulated_hit_rate(
    arrivals: Sequence[RealArrival],
    *,
    policy: str,
    params: StepParams,
    cost: CostModel,
    delays: Delays,
    tells_cache: bool,
) -> float:
    """Σ cached / Σ prompt tokens of the requests that the simulated engine admitted."""
    cluster = LeavingClients(
        Dispatcher(make_scheduler(policy), make_placement("single"), "simulated"),
        params,
        cost,
        max_running=params.max_running,
        delays=delays,
        tells_cache=tells_cache,
    )
    for arrival in arrivals:
        if arrival.abort_s is not None:
            ticket = arrival.ticket
            cluster.leave_at(ticket.arrival_s + arrival.abort_s, ticket.request_id)
    served = cluster.run(Arrival(a.ticket, a.output_tokens, a.private, a.output) for a in arrivals)
    admitted = [s for s in served.values() if s.admitted_s is not None]
    prompt = sum(s.ticket.skeleton.prompt_tokens for s in admitted)
    return sum(s.cached_tokens for s in admitted) / prompt
