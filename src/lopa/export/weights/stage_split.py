"""Which layers each stage of a pipeline gets. Knows how many bytes tensors take, and no values."""

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise

from lopa.runtime.bundle.manifest import TensorRecord
from lopa.runtime.contract.model_part import ModelPart
from lopa.runtime.errors import BadInputError


def parts_from_records(records: Mapping[str, TensorRecord], layers: int, stages: int) -> list[ModelPart]:
    """`stages` parts whose weights take as nearly the same number of bytes as can be.

    Bytes stand for time, since every weight of a stage is read in every forward. The product with the vocabulary is
    counted with the last layer. The embedding is not: a few of its rows are looked up. Raises BadInputError for more
    stages than layers.
    """
    if not 1 <= stages <= layers:
        raise BadInputError(
            f"{stages} stages for a checkpoint of {layers} layers",
            expected=f"from 1 to {layers} stages: each has at least one layer",
            remedy="give a smaller --stages",
        )
    costs = [_bytes_of(records, f"layers.{layer}.") for layer in range(layers)]
    costs[-1] += _bytes_of(records, "final_norm.") + _bytes_of(records, "head.")
    edges = [0, *even_ends(costs, stages)]
    return [ModelPart(first, end, layers) for first, end in pairwise(edges)]


def even_ends(costs: Sequence[int], parts: int) -> tuple[int, ...]:
    """Where each of `parts` consecutive, non-empty parts of `costs` ends.

    Of all ways one whose greatest part is least, and then whose squares sum to least.
    """
    sums = [0]
    for cost in costs:
        sums.append(sums[-1] + cost)

    @cache
    def best(first: int, left: int) -> tuple[int, int, tuple[int, ...]]:
        """Greatest cost, sum of squares and ends of `left` parts from `first` on."""
        choices = []
        for end in range(first + 1, len(costs) - left + 2) if left > 1 else [len(costs)]:
            cost = sums[end] - sums[first]
            greatest, squares, ends = best(end, left - 1) if left > 1 else (0, 0, ())
            choices.append((max(cost, greatest), cost * cost + squares, (end, *ends)))
        return min(choices)

    return best(0, parts)[2]


def _bytes_of(records: Mapping[str, TensorRecord], prefix: str) -> int:
    return sum(record.length for name, record in records.items() if name.startswith(prefix))
