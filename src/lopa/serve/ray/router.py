"""Router that prefers the replica that caches a request's prompt, otherwise the one with the fewest requests."""

import random
from collections.abc import Collection, Sequence
from typing import Any

from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter

_ALL = 10**6
"""Number of fallback replicas. It exceeds any number of replicas, so all are tried."""


class AffinityRouter(ConsistentHashRouter):  # type: ignore[misc]
    """Ray's consistent hash ring for requests with a key (Ray's session ID).

    Requests without a key go to the replica with the fewest requests. In both cases replicas with the open bundle come
    first.
    """

    def initialize_state(self, **kwargs: Any) -> None:
        """Initialize Ray's router with all replicas as fallback."""
        super().initialize_state(**{"num_fallback_replicas": _ALL, **kwargs})

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any = None) -> list[list[Any]]:
        """Return lists of replicas to try in turn. Ray takes from each list the replica with the fewest requests."""
        if pending_request is None or not candidate_replicas:
            return list(await super().choose_replicas(candidate_replicas, pending_request))
        pending_request.routing_context.should_backoff = True
        ranks = [random.sample(candidate_replicas, len(candidate_replicas))]  # random order among equals
        if pending_request.metadata.session_id:
            ranks = await super().choose_replicas(candidate_replicas, pending_request)
        model = pending_request.metadata.multiplexed_model_id
        return with_model_first(ranks, {each for rank in ranks for each in rank if model in each.multiplexed_model_ids})


def with_model_first(ranks: Sequence[Sequence[Any]], having: Collection[Any]) -> list[list[Any]]:
    """Return `ranks` with the replicas in `having` before the others."""
    parts = [[each for each in rank if (each in having) is first] for first in (True, False) for rank in ranks]
    return [part for part in parts if part]
