"""What a round of a replica takes: its forwards, by a measured table or a model, and the host's work. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from lopa.bench.buckets.recording import packed_sizes
from lopa.bench.fleet.scenario import Material, ModelledCosts
from lopa.runtime.bundle.costs import Costs, CostTable
from lopa.runtime.contract.sizes import Sizes

ForwardSeconds = Callable[[Sizes], float]


@dataclass(frozen=True)
class Round:
    """Seconds and rows of one round."""

    forward: float
    """Seconds of all its forwards."""
    host: float
    """Seconds of everything else."""
    rows: int
    """Rows of the forwards, padding included."""

    @property
    def seconds(self) -> float:
        """Seconds of the whole round."""
        return self.forward + self.host


@dataclass(frozen=True)
class RoundCosts:
    """Seconds from which rounds are made."""

    forward: ForwardSeconds
    round_seconds: float
    """Of every round beyond its forwards."""
    host_seconds: float
    """Of every request in a round."""
    host_seconds_a_branch: float
    """Of each of its branches after the first."""
    joining_seconds: float
    """Of every request once."""

    def round_of(self, shapes: Sequence[Sizes], branches: Sequence[int], joining: int = 0) -> Round:
        """Return the round of requests whose forwards alone would have these `shapes`, packed as the engine packs them.

        For `joining` of them it is the first round.
        """
        packed = packed_sizes(shapes)
        host = len(branches) * self.host_seconds + (sum(branches) - len(branches)) * self.host_seconds_a_branch
        return Round(
            forward=sum(map(self.forward, packed)),
            host=self.round_seconds + host + joining * self.joining_seconds,
            rows=sum(sizes.rows for sizes in packed),
        )


def costs_of_material(material: Material) -> RoundCosts:
    """Return the costs that the scenario names."""
    costs = material.scenario.costs
    host: ModelledCosts | Costs
    if isinstance(costs, ModelledCosts):
        forward, round_seconds, host = modelled_forward(costs), costs.round_seconds, costs
    else:
        assert material.table is not None
        forward, round_seconds, host = measured_forward(material.table, costs.slowdown), 0.0, material.table.costs
    return RoundCosts(
        cache(forward), round_seconds, host.host_seconds, host.host_seconds_a_branch, costs.joining_seconds
    )


def measured_forward(table: CostTable, slowdown: float) -> ForwardSeconds:
    """The table knows one request: the branches of several are taken for as many branches of one."""
    return lambda sizes: slowdown * table.seconds(sizes.requests * sizes.branches, sizes.window, sizes.prefix)


def modelled_forward(costs: ModelledCosts) -> ForwardSeconds:
    """Of moving weights, prefixes and new rows once and of the products with the weights, whichever is longer."""

    def seconds(sizes: Sizes) -> float:
        cached = costs.cache_row_bytes * (sizes.requests * sizes.prefix + sizes.rows)
        moving = (costs.weight_bytes + cached) / costs.bandwidth
        return max(moving, 2 * costs.parameters * sizes.rows / costs.operations)

    return seconds
