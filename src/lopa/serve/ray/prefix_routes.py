"""The choice of a replica for a request: the one with its longest prefix, unless that one is much busier than others.

This module does not depend on Ray.
"""

import random
from collections import OrderedDict
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

Replica = TypeVar("Replica", bound=Hashable)
MAX_ROUTES = 2**16
"""Maximum number of remembered prefixes: about 10 MB."""


class PrefixRoutes(Generic[Replica]):
    """The replica that last computed each prefix, for the most recently used prefixes."""

    def __init__(self, max_routes: int = MAX_ROUTES) -> None:
        self._max_routes = max_routes
        self._replicas: OrderedDict[str, Replica] = OrderedDict()

    def __len__(self) -> int:
        return len(self._replicas)

    def find(self, prefixes: Sequence[str], replicas: Collection[Replica]) -> Replica | None:
        """Return the one of `replicas` that computed the longest of `prefixes`, which are in ascending length."""
        for prefix in reversed(prefixes):
            replica = self._replicas.get(prefix)
            if replica is not None and replica in replicas:
                return replica
        return None

    def record(self, prefixes: Sequence[str], replica: Replica) -> None:
        """Remember that `replica` computes `prefixes`. Longer ones are forgotten before shorter ones."""
        for prefix in reversed(prefixes):
            self._replicas[prefix] = replica
            self._replicas.move_to_end(prefix)
        while len(self._replicas) > self._max_routes:
            self._replicas.popitem(last=False)


def ranked_replicas(home: Replica | None, requests: Mapping[Replica, int], max_excess: int) -> list[list[Replica]]:
    """Return the replicas in groups, to try in turn, from the number of unfinished `requests` of each.

    The first one is `home`, which has the longest prefix, unless it has at least `max_excess` requests more than some
    other replica. Replicas with fewer requests come first, and equally busy ones are in one group in random order.
    """
    fewest = min(requests.values(), default=0)
    first = [home] if home is not None and requests[home] < fewest + max_excess else []
    others = [each for each in random.sample(list(requests), len(requests)) if each not in first]
    groups = [[each for each in others if requests[each] == count] for count in sorted({requests[i] for i in others})]
    return [group for group in [first, *groups] if group]
