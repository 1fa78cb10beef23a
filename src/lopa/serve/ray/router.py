"""Router that prefers the replica that has a request's prefix, otherwise the one with the fewest requests."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter

from lopa.serve.ray.affinity import PrefixRoutes, ranked_replicas


class PrefixRouter(ConsistentHashRouter):  # type: ignore[misc]
    """Longest-prefix match with bounded load.

    Ray carries the prefixes as the request's session ID. Its consistent hash ring is not used, only its loop over
    waiting requests. Replicas with the open bundle come first.
    """

    def initialize_state(self, *, max_excess: int, **kwargs: Any) -> None:
        """Initialize the router. `max_excess` is the excess of requests at which a replica loses its conversations."""
        super().initialize_state(**kwargs)
        self._max_excess = max_excess
        self._routes: PrefixRoutes[Any] = PrefixRoutes()
        self._requests: Counter[Any] = Counter()
        """Number of requests on each replica that this router sent and that have not ended."""

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any = None) -> list[list[Any]]:
        """Return lists of replicas to try in turn. Ray takes from each list the replica with the fewest requests."""
        if pending_request is None or not candidate_replicas:
            return list(await super().choose_replicas(candidate_replicas, pending_request))
        pending_request.routing_context.should_backoff = True
        metadata = pending_request.metadata
        replicas = {each.replica_id: each for each in candidate_replicas}
        home = self._routes.find(metadata.session_id.split(), replicas)
        ranks = ranked_replicas(home, {each: self._requests[each] for each in replicas}, self._max_excess)
        model = metadata.multiplexed_model_id
        having = {each for each in candidate_replicas if model in each.multiplexed_model_ids}
        return with_model_first([[replicas[each] for each in rank] for rank in ranks], having)

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:
        """Remember which replica computes the request's prefixes."""
        super().on_request_routed(pending_request, replica_id, result)
        self._routes.record(pending_request.metadata.session_id.split(), replica_id)

    def on_send_request(self, replica_id: Any) -> None:
        """Count a request that was sent to a replica."""
        super().on_send_request(replica_id)
        self._requests[replica_id] += 1

    def on_request_completed(self, replica_id: Any, internal_request_id: str) -> None:
        """Count a request that ended, or that the replica rejected."""
        super().on_request_completed(replica_id, internal_request_id)
        self._requests[replica_id] -= 1
        if self._requests[replica_id] <= 0:
            del self._requests[replica_id]


def with_model_first(ranks: Sequence[Sequence[Any]], having: Collection[Any]) -> list[list[Any]]:
    """Return `ranks` with the replicas in `having` before the others."""
    parts = [[each for each in rank if (each in having) is first] for first in (True, False) for rank in ranks]
    return [part for part in parts if part]
