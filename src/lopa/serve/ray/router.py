"""Which replica answers: the one that holds the rows of a request's prompt, or the one with the fewest requests."""

import random
from collections.abc import Collection, Sequence
from typing import Any

from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter

_ALL = 10**6
"""More than there are replicas: where one is full the next is asked."""


class AffinityRouter(ConsistentHashRouter):  # type: ignore[misc]
    """Ray's ring of replicas for requests that have a key (a session id, in Ray's words).

    Requests without one go where the fewest are. For both, replicas that have the bundle open come before others.
    """

    def initialize_state(self, **kwargs: Any) -> None:
        """As Ray's routers have it."""
        super().initialize_state(**{"num_fallback_replicas": _ALL, **kwargs})

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any = None) -> list[list[Any]]:
        """Lists of replicas to try one behind the other; of a list the one that has the fewest requests."""
        if pending_request is None or not candidate_replicas:
            return list(await super().choose_replicas(candidate_replicas, pending_request))
        pending_request.routing_context.should_backoff = True
        ranks = [random.sample(candidate_replicas, len(candidate_replicas))]  # of equals not always the same
        if pending_request.metadata.session_id:
            ranks = await super().choose_replicas(candidate_replicas, pending_request)
        model = pending_request.metadata.multiplexed_model_id
        return with_model_first(ranks, {each for rank in ranks for each in rank if model in each.multiplexed_model_ids})


def with_model_first(ranks: Sequence[Sequence[Any]], having: Collection[Any]) -> list[list[Any]]:
    """`ranks` with what is in `having` before what is not."""
    parts = [[each for each in rank if (each in having) is wanted] for wanted in (True, False) for rank in ranks]
    return [part for part in parts if part]
