"""What a round of a replica takes: its forwards, by a measured table or a model, and the host's work. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lopa.bench.fleet.scenario import Material, ModelledCosts
from lopa.bench.gears.recording import packed_sizes
from lopa.runtime.bundle.costs import CostTable
from lopa.runtime.contract.sizes import Sizes

ForwardSeconds = Callable[[Sizes], float]


@dataclass(frozen=True)
class Round:
    """What one takes, in seconds."""

    forward: float
    """All of its forwards."""
    host: float
    """Everything else."""
    rows: int
    """Of the forwards, padding included."""

    @property
    def seconds(self) -> float:
        """Of the whole."""
        return self.forward + self.host


class RoundCosts:
    """What rounds take."""

    def __init__(
        self,
        forward: ForwardSeconds,
        *,
        round_seconds: float,
        host_seconds: float,
        host_seconds_a_branch: float,
        joining_seconds: float,
    ) -> None:
        self._forward = forward
        self._round, self._host, self._branch = round_seconds, host_seconds, host_seconds_a_branch
        self._joining = joining_seconds
        self._known: dict[Sizes, float] = {}

    def forward_seconds(self, sizes: Sizes) -> float:
        """Expected, of one forward."""
        if sizes not in self._known:
            self._known[sizes] = self._forward(sizes)
        return self._known[sizes]

    def round_of(self, shapes: Sequence[Sizes], branches: Sequence[int], joining: int = 0) -> Round:
        """Of requests whose forwards alone would have these `shapes`, packed as the engine packs them.

        For `joining` of them it is the first round.
        """
        packed = packed_sizes(shapes)
        host = len(branches) * self._host + (sum(branches) - len(branches)) * self._branch
        return Round(
            forward=sum(map(self.forward_seconds, packed)),
            host=self._round + host + joining * self._joining,
            rows=sum(sizes.rows for sizes in packed),
        )


def costs_of_material(material: Material) -> RoundCosts:
    """As the scenario says."""
    costs = material.scenario.costs
    if isinstance(costs, ModelledCosts):
        return RoundCosts(
            modelled_forward(costs),
            round_seconds=costs.round_seconds,
            host_seconds=costs.host_seconds,
            host_seconds_a_branch=costs.host_seconds_a_branch,
            joining_seconds=costs.joining_seconds,
        )
    assert material.table is not None
    measured = material.table.costs
    return RoundCosts(
        measured_forward(material.table, costs.slowdown),
        round_seconds=0.0,
        host_seconds=measured.host_seconds,
        host_seconds_a_branch=measured.host_seconds_a_branch,
        joining_seconds=costs.joining_seconds,
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
