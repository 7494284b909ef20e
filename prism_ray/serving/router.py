"""The request router: a call goes to the replica that was decided, or waits for the ingress to ask again.

It never picks another replica and never raises (an exception in ``choose_replicas`` leaves a request
hanging for ever). It also tells the ingress, in the same process, which replicas Serve runs. Serve
ships this module by value, so it must hold no state of its own.
"""

from __future__ import annotations

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from prism_ray.serving.membership import membership_of


class DecidedReplicaRouter(RequestRouter):  # type: ignore[misc]
    """Honours the replica named in the call's ``session_id``."""

    @property
    def supports_rejection_protocol(self) -> bool:
        # QAS's credit guarantees capacity; Serve's own queue must never hold a request back.
        return False

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        deployment = self._deployment_id
        names = frozenset(r.replica_id.unique_id for r in replicas)
        membership_of(deployment.app_name, deployment.name).set(names)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        deployment = self._deployment_id
        membership_of(deployment.app_name, deployment.name).remove(replica_id.unique_id)

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        if pending_request is None:
            return [candidate_replicas]
        wanted = pending_request.metadata.session_id
        if not wanted:
            return [candidate_replicas]
        # While the decided replica is not there, Serve asks again at once, in a loop that never yields
        # to its event loop, unless it is told to back off: the news of replicas could not come in.
        pending_request.routing_context.should_backoff = True
        decided = [r for r in candidate_replicas if r.replica_id.unique_id == wanted]
        if not decided:
            deployment = self._deployment_id
            membership_of(deployment.app_name, deployment.name).call_waits()
        return [decided]
