"""Split of layers among the stages of a pipeline."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lopa.export.weights.stage_split import even_ends, parts_from_records
from lopa.runtime.bundle.manifest import TensorRecord
from lopa.runtime.contract.model_part import ModelPart
from lopa.runtime.errors import BadInputError


@given(st.lists(st.integers(1, 50), min_size=1, max_size=9), st.data())
def test_no_other_split_is_more_even(costs: list[int], data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, len(costs)))
    ends = even_ends(costs, parts)
    assert len(ends) == parts
    assert ends[-1] == len(costs)
    ways = [(*cuts, len(costs)) for cuts in combinations(range(1, len(costs)), parts - 1)]
    assert ends in ways
    assert _greatest(costs, ends) == min(_greatest(costs, way) for way in ways)


def _greatest(costs: list[int], ends: tuple[int, ...]) -> int:
    return max(sum(costs[first:end]) for first, end in pairwise((0, *ends)))


def _records(layers: int, *, layer: int, head: int, embedding: int) -> dict[str, TensorRecord]:
    lengths = {"embedding.weight": embedding, "final_norm.weight": 1, "head.weight": head}
    for number in range(layers):
        lengths |= {f"layers.{number}.mlp.up.weight": layer - 1, f"layers.{number}.mlp.up.weight_scale": 1}
    return {
        name: TensorRecord(dtype="int8", shape=[length], offset=0, length=length) for name, length in lengths.items()
    }


@pytest.mark.parametrize(
    ("layers", "head", "stages", "sizes"),
    [
        (5, 1, 1, [5]),
        (6, 1, 2, [3, 3]),
        (5, 1, 5, [1, 1, 1, 1, 1]),
        (28, 230, 4, [7, 8, 8, 5]),  # Dream: the head has the size of 2.3 layers
        (28, 230, 2, [15, 13]),
        (12, 100, 3, [4, 5, 3]),  # more than ten layers: layers.1 must not match layers.1x
    ],
)
def test_the_head_counts_with_the_last_layer(layers: int, head: int, stages: int, sizes: list[int]) -> None:
    records = _records(layers, layer=100, head=head, embedding=10**6)
    parts = parts_from_records(records, layers, stages)
    assert [part.end - part.first for part in parts] == sizes
    assert [part.first for part in parts] == [0, *(part.end for part in parts[:-1])]
    assert parts[0].is_first
    assert parts[-1] == ModelPart(layers - sizes[-1], layers, layers)


@pytest.mark.parametrize("stages", [0, 6])
def test_more_stages_than_layers(stages: int) -> None:
    with pytest.raises(BadInputError, match=f"{stages} stages for a checkpoint of 5 layers") as caught:
        parts_from_records(_records(5, layer=100, head=1, embedding=1), 5, stages)
    assert "from 1 to 5" in caught.value.expected
