"""Duration of a replica's round: its forwards, from a measured table or a model, and the host's work."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from lopa.bench.buckets.forward_recording import packed_sizes
from lopa.bench.fleet.scenario import Material, ModelledCosts
from lopa.runtime.bundle.costs import CostTable, DeviceCosts
from lopa.runtime.contract.sizes import Sizes

ForwardSeconds = Callable[[Sizes], float]


@dataclass(frozen=True)
class Round:
    """Seconds and rows of one round."""

    forward: float
    """Seconds of all forwards."""
    host: float
    """Seconds of the round outside the forwards."""
    rows: int
    """Rows of the forwards, including padding."""

    @property
    def seconds(self) -> float:
        """Seconds of the whole round."""
        return self.forward + self.host


@dataclass(frozen=True)
class SimulatedCosts:
    """Costs of forwards and of the host's work, in seconds."""

    forward: ForwardSeconds
    round_seconds: float
    """Seconds per round outside its forwards."""
    host_seconds: float
    """Seconds per request and round."""
    host_seconds_a_branch: float
    """Seconds per request and round for each branch after the first."""
    joining_seconds: float
    """Seconds per request, once."""

    def round_of(self, shapes: Sequence[Sizes], branches: Sequence[int], joining: int = 0) -> Round:
        """Return the costs of a round of requests whose own forwards have these `shapes`, packed as the engine does.

        `joining` is the number of requests in their first round.
        """
        packed = packed_sizes(shapes)
        host = len(branches) * self.host_seconds + (sum(branches) - len(branches)) * self.host_seconds_a_branch
        return Round(
            forward=sum(map(self.forward, packed)),
            host=self.round_seconds + host + joining * self.joining_seconds,
            rows=sum(sizes.rows for sizes in packed),
        )


def costs_of_material(material: Material) -> SimulatedCosts:
    """Return the costs of a scenario."""
    costs = material.scenario.costs
    host: ModelledCosts | DeviceCosts
    if isinstance(costs, ModelledCosts):
        forward, round_seconds, host = modelled_forward(costs), costs.round_seconds, costs
    else:
        assert material.table is not None
        forward, round_seconds, host = measured_forward(material.table, costs.slowdown), 0.0, material.table.costs
    return SimulatedCosts(
        cache(forward), round_seconds, host.host_seconds, host.host_seconds_a_branch, costs.joining_seconds
    )


def measured_forward(table: CostTable, slowdown: float) -> ForwardSeconds:
    """Return a function that reads the table. The branches of all requests count as branches of one request."""
    return lambda sizes: slowdown * table.seconds(sizes.requests * sizes.branches, sizes.window, sizes.prefix)


def modelled_forward(costs: ModelledCosts) -> ForwardSeconds:
    """Return a roofline function: the longer of data movement and matrix products.

    Data movement covers weights, prefixes and new rows, each once.
    """

    def seconds(sizes: Sizes) -> float:
        cached = costs.cache_row_bytes * (sizes.requests * sizes.prefix + sizes.rows)
        moving = (costs.weight_bytes + cached) / costs.bandwidth
        return max(moving, 2 * costs.parameters * sizes.rows / costs.operations)

    return seconds
