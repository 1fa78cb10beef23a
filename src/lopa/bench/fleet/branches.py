"""How many branches a request starts with when that follows from the load. Pure."""

from collections.abc import Mapping, Sequence
from math import ceil

from lopa.bench.fleet.costs import RoundCosts
from lopa.bench.fleet.decodes import Decodes
from lopa.runtime.contract import tiles
from lopa.runtime.contract.sizes import Sizes


def branches_under_load(
    slots: int, tokens: Mapping[int, float], round_seconds: Mapping[int, Sequence[float]]
) -> list[int]:
    """For 1 .. `slots` requests at once the number of branches with which they write the most tokens a second.

    `tokens` of a step by number of branches, and for each the seconds of a round of 1 .. `slots` such requests. The
    smallest number where several are alike.
    """
    return [
        max(sorted(tokens), key=lambda count: tokens[count] / round_seconds[count][running]) for running in range(slots)
    ]


def branches_of_decodes(decodes: Decodes, costs: RoundCosts, slots: int) -> list[int]:
    """The rule for a replica of these `costs`, by the mean step that was recorded with each number of branches."""
    tokens = {count: decodes.tokens_a_step(count) for count in decodes.counts}
    seconds = {count: _round_seconds(decodes, costs, count, slots) for count in decodes.counts}
    return branches_under_load(slots, tokens, seconds)


def _round_seconds(decodes: Decodes, costs: RoundCosts, count: int, slots: int) -> list[float]:
    sequences, window, prefix = decodes.mean_step(count)
    alone = Sizes(1, round(sequences), ceil(window), tiles(ceil(prefix)), ceil(window))
    return [costs.round_of([alone] * running, [count] * running).seconds for running in range(1, slots + 1)]
