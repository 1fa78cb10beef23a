from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.runtime.bundle.test_buckets import BUCKETS
from tests.runtime.random_windows import random_batch

from lopa.export.ascend.inputs import bucketed_inputs, engine_outputs
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract.portable_form import portable_inputs, portable_past
from lopa.runtime.errors import BadInputError
from lopa.runtime.sessions.prefix_cache import cache_shape_from_manifest


@pytest.fixture(scope="module")
def model(tiny_portable: Path) -> onnx.ModelProto:
    return onnx.load(Bundle.open(tiny_portable).graph, load_external_data=False)


@pytest.mark.parametrize("index", range(3))
def test_a_tuple_gives_the_shapes_that_the_runtime_sends(
    model: onnx.ModelProto, tiny_portable: Path, index: int
) -> None:
    bucketed = bucketed_inputs(model, BUCKETS)
    one = BUCKETS[index]
    rng = np.random.default_rng(index)
    batch = random_batch(rng, range(one.requests), one.branches, one.window, one.wanted)
    manifest = Bundle.open(tiny_portable).manifest
    sent = portable_inputs(batch, rng.random((one.requests, one.prefix)) < 0.5, manifest.rotary)
    filled = bucketed.filled(bucketed.tuples[index])
    assert {each.name: tuple(each.dims) for each in filled[:7]} == {name: sent[name].shape for name in sent}
    assert {each.name: each.dtype for each in filled[:7]} == {name: sent[name].dtype.name for name in sent}
    cache = cache_shape_from_manifest(manifest).zeros(one.requests, one.prefix)
    assert [tuple(each.dims) for each in filled[7:]] == [portable_past(cache.block).shape]
    assert [each.name for each in filled] == [value.name for value in model.graph.input]


def test_outputs(model: onnx.ModelProto) -> None:
    outputs = engine_outputs(model)
    assert [(each.name, each.dtype) for each in outputs[:4]] == [
        ("topk_ids", "int64"),
        ("topk_logprobs", "float32"),
        ("entropy", "float32"),
        ("window_key_values.0.key", "float32"),
    ]
    assert len(outputs) == 3 + 10 + 1


def test_one_head_for_each_request(model: onnx.ModelProto) -> None:
    """Check a single key-value head, whose axis is exported as `requests` without a factor."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    model.graph.input[-1].type.tensor_type.shape.dim[1].dim_param = "requests"
    assert [numbers[-2:] for numbers in bucketed_inputs(model, BUCKETS).tuples] == [(1, 64), (1, 128), (2, 128)]


def test_a_graph_of_the_standard_dialect_is_rejected(tiny_bundle: Path) -> None:
    standard = onnx.load(Bundle.open(tiny_bundle).graph, load_external_data=False)
    with pytest.raises(BadInputError, match="dynamic axes branches"):
        bucketed_inputs(standard, BUCKETS)
