"""Split of the layers among pipeline stages by the size of their weights."""

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise

from lopa.runtime.bundle.manifest import TensorRecord
from lopa.runtime.contract.model_part import ModelPart
from lopa.runtime.errors import BadInputError


def parts_from_records(records: Mapping[str, TensorRecord], layers: int, stages: int) -> list[ModelPart]:
    """Return `stages` parts of the model whose weights have nearly equal sizes in bytes.

    Bytes are a measure of time, because every forward reads all weights of a stage. The last layer includes the head.
    The embedding does not count, because only a few of its rows are read. Raises BadInputError for more stages than
    layers.
    """
    if not 1 <= stages <= layers:
        raise BadInputError(
            f"{stages} stages for a checkpoint of {layers} layers",
            expected=f"from 1 to {layers} stages, one layer each or more",
            remedy="use a smaller --stages",
        )
    costs = [_bytes_of(records, f"layers.{layer}.") for layer in range(layers)]
    costs[-1] += _bytes_of(records, "final_norm.") + _bytes_of(records, "head.")
    edges = [0, *even_ends(costs, stages)]
    return [ModelPart(first, end, layers) for first, end in pairwise(edges)]


def even_ends(costs: Sequence[int], parts: int) -> tuple[int, ...]:
    """Return the ends of `parts` consecutive, non-empty parts of `costs`.

    The parts minimize the largest cost, then the sum of squares.
    """
    sums = [0]
    for cost in costs:
        sums.append(sums[-1] + cost)

    @cache
    def best(first: int, left: int) -> tuple[int, int, tuple[int, ...]]:
        """Return the largest cost, the sum of squares and the ends of `left` parts that start at `first`."""
        choices = []
        for end in range(first + 1, len(costs) - left + 2) if left > 1 else [len(costs)]:
            cost = sums[end] - sums[first]
            largest, squares, ends = best(end, left - 1) if left > 1 else (0, 0, ())
            choices.append((max(cost, largest), cost * cost + squares, (end, *ends)))
        return min(choices)

    return best(0, parts)[2]


def _bytes_of(records: Mapping[str, TensorRecord], prefix: str) -> int:
    return sum(record.length for name, record in records.items() if name.startswith(prefix))
