"""Every rule of the portable dialect, violated on purpose in a correct graph, and the table of ATC's operators."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.helper as make
import onnx.numpy_helper
import pytest
from tests.export.checkpoints import small_checkpoint

from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.export.graph.portable_lint import ALLOWED, ascend_operators, check_portable, violations_of_model
from lopa.export.graph.portable_passes import OPSET
from lopa.runtime.errors import CheckFailedError

Change = Callable[[onnx.ModelProto], None]


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> onnx.ModelProto:
    folder = tmp_path_factory.mktemp("lint")
    checkpoint = small_checkpoint(folder / "checkpoint", changes={"num_hidden_layers": 1})
    bundle = bundle_from_checkpoint(checkpoint, folder / "bundle", dialects=("portable",), with_logits=True)
    return onnx.load(bundle.graph, load_external_data=False)


def _node(model: onnx.ModelProto, name: str) -> onnx.NodeProto:
    return next(node for node in model.graph.node if node.name == name)


def _insert(model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    """Append a node whose outputs are not used."""
    model.graph.node.append(node)


def _constant(model: onnx.ModelProto, name: str, values: np.ndarray) -> str:
    model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return name


def _second_import(model: onnx.ModelProto) -> None:
    model.opset_import.append(make.make_opsetid("com.microsoft", 1))


def _imported_twice(model: onnx.ModelProto) -> None:
    model.opset_import.append(make.make_opsetid("", 16))


def _imported_by_both_names(model: onnx.ModelProto) -> None:
    model.opset_import.append(make.make_opsetid("ai.onnx", 16))


def _not_imported(model: onnx.ModelProto) -> None:
    del model.opset_import[:]


def _newer_opset(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 18
    _node(model, "layers.0.attention_norm/ReduceMean").op_type = "ReduceMax"


def _unregistered(model: onnx.ModelProto) -> None:
    _node(model, "layers.0.mlp/Sigmoid").op_type = "Gelu"


def _other_domain(model: onnx.ModelProto) -> None:
    _node(model, "layers.0.mlp/Sigmoid").domain = "com.microsoft"


def _unregistered_opset(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 20


def _to_avoid(model: onnx.ModelProto) -> None:
    values = _constant(model, "padding", np.array([0, 1, 0, 1]))
    _insert(model, make.make_node("Pad", ["head", values], ["padded"], name="bad"))


def _input_of_five_axes(model: onnx.ModelProto) -> None:
    model.graph.input.append(make.make_tensor_value_info("bad", onnx.TensorProto.FLOAT, ["r", 1, 2, 3, 4]))


def _weight_of_three_axes(model: onnx.ModelProto) -> None:
    weight = _constant(model, "bad", np.random.default_rng(0).standard_normal((1, 32, 32)).astype(np.float32))
    _node(model, "layers.0.attention.query/MatMul").input[1] = weight


def _not_a_number(model: onnx.ModelProto) -> None:
    _constant(model, "bad", np.array(np.nan, np.float16))


def _not_of_the_dialect(model: onnx.ModelProto) -> None:
    _insert(model, make.make_node("Softplus", ["temperature"], ["squashed"], name="bad"))


def _last_index(model: onnx.ModelProto) -> None:
    _insert(model, make.make_node("ArgMax", ["temperature"], ["last"], name="bad", select_last_index=1))


def _five_axes(model: onnx.ModelProto) -> None:
    axes = _constant(model, "axes", np.array([0]))
    _insert(model, make.make_node("Unsqueeze", ["window_mask", axes], ["five"], name="bad"))


def _empty_axis(model: onnx.ModelProto) -> None:
    model.graph.input.append(make.make_tensor_value_info("bad", onnx.TensorProto.FLOAT, ["r", 0]))


def _empty_slice(model: onnx.ModelProto) -> None:
    bounds = [_constant(model, f"bound{i}", np.array([2])) for i in range(2)]
    axis = _constant(model, "axis", np.array([1]))
    _insert(model, make.make_node("Slice", ["topk_logprobs", *bounds, axis], ["empty"], name="bad"))


def _computed_reshape(model: onnx.ModelProto) -> None:
    _insert(model, make.make_node("Reshape", ["temperature", "logits_index"], ["moved"], name="bad"))


def _shape_chain(model: onnx.ModelProto) -> None:
    _insert(model, make.make_node("Shape", ["input_ids"], ["size"], name="bad"))
    _insert(model, make.make_node("Expand", ["prefix_mask", "size"], ["wide"], name="worse"))


def _unknown_shape(model: onnx.ModelProto) -> None:
    _insert(model, make.make_node("Sigmoid", ["nowhere"], ["unknown"], name="fine"))
    _insert(model, make.make_node("NoSuchThing", ["temperature"], ["unknown2"], name="bad"))


def _swapped_weight(model: onnx.ModelProto) -> None:
    node = _node(model, "layers.0.attention.query/MatMul")
    node.input[:] = reversed(list(node.input))


def _transposed_weight(model: onnx.ModelProto) -> None:
    node = _node(model, "layers.0.attention.query/MatMul")
    turned = make.make_node("Transpose", [node.input[1]], ["turned"], name="turn", perm=[1, 0])
    model.graph.node.insert(0, turned)
    node.input[1] = "turned"


def _infinite(model: onnx.ModelProto) -> None:
    _constant(model, "bad", np.array([0.0, -np.inf], np.float32))


def _bare_indices(model: onnx.ModelProto) -> None:
    indices = _node(model, "TopK").output[1]
    casts = [node for node in model.graph.node if indices in node.input]
    assert [node.op_type for node in casts] == ["Cast"]
    _insert(model, make.make_node("Add", [indices, indices], ["twice"], name="adds"))


def _function(model: onnx.ModelProto) -> None:
    node = make.make_node("Neg", ["a"], ["b"])
    model.functions.append(make.make_function("local", "bad", ["a"], ["b"], [node], [make.make_opsetid("", 17)]))


@pytest.mark.parametrize(
    ("change", "rule", "node", "operator", "rank", "remedy"),
    [
        (_second_import, "opset import", "", "", None, "import only ai.onnx 17"),
        (_imported_twice, "opset import", "", "", None, "import only ai.onnx 17"),
        (_imported_by_both_names, "opset import", "", "", None, "import only ai.onnx 17"),
        (_not_imported, "opset import", "", "", None, "import only ai.onnx 17"),
        (_newer_opset, "opset import", "", "", None, "import only ai.onnx 17"),
        (_function, "opset import", "local::bad", "", None, "inline it"),
        (_unregistered, "unregistered operator", "layers.0.mlp/Sigmoid", "Gelu", None, "plain operators"),
        (_other_domain, "unregistered operator", "layers.0.mlp/Sigmoid", "Sigmoid", None, "operators of the dialect"),
        (_unregistered_opset, "unregistered opset", "TopK", "TopK", None, "opset 17"),
        (_to_avoid, "operator to avoid", "bad", "Pad", None, "Slice and Concat"),
        (_not_of_the_dialect, "operator to avoid", "bad", "Softplus", None, "operators of the dialect"),
        (_last_index, "operator to avoid", "bad", "ArgMax", None, "leave it 0"),
        (_five_axes, "rank", "bad", "Unsqueeze", 5, "fold axes"),
        (_input_of_five_axes, "rank", "bad", "", 5, "fold axes"),
        (_empty_axis, "empty axis", "bad", "", 2, "remove it"),
        (_empty_slice, "empty axis", "bad", "Slice", 2, "remove it"),
        (_computed_reshape, "data-dependent shape", "bad", "Reshape", None, "masks and positions as inputs"),
        (_shape_chain, "operator to avoid", "bad", "Shape", None, "masks and positions as inputs"),
        (_shape_chain, "data-dependent shape", "worse", "Expand", None, "masks and positions as inputs"),
        (_unknown_shape, "data-dependent shape", "bad", "NoSuchThing", None, "masks and positions as inputs"),
        (_swapped_weight, "weight of a product", "layers.0.attention.query/MatMul", "MatMul", 2, "second input"),
        (_weight_of_three_axes, "weight of a product", "layers.0.attention.query/MatMul", "MatMul", 3, "second input"),
        (_transposed_weight, "weight of a product", "layers.0.attention.query/MatMul", "MatMul", 2, "second input"),
        (_infinite, "infinite constant", "bad", "", 1, "-1e4"),
        (_not_a_number, "infinite constant", "bad", "", 0, "-1e4"),
        (_bare_indices, "index type", "TopK", "TopK", None, "Cast"),
    ],
)
def test_a_broken_rule_is_named(
    clean: onnx.ModelProto, change: Change, rule: str, node: str, operator: str, rank: int | None, remedy: str
) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(clean)
    change(model)
    found = violations_of_model(model)
    meant = [each for each in found if (each.rule, each.node, each.operator, each.rank) == (rule, node, operator, rank)]
    assert len(meant) == 1, found
    assert remedy in meant[0].remedy
    assert meant[0].opset == (model.opset_import[0].version if model.opset_import else 0)


def test_a_graph_that_follows_the_rules(clean: onnx.ModelProto) -> None:
    assert violations_of_model(clean) == []
    check_portable(clean, "clean.onnx")


def test_an_export_that_violates_a_rule_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = small_checkpoint(tmp_path / "checkpoint", changes={"num_hidden_layers": 1})
    monkeypatch.setattr("lopa.export.graph.portable_lint.MAX_AXES", 3)
    with pytest.raises(CheckFailedError, match="has 4 axes"):
        bundle_from_checkpoint(checkpoint, tmp_path / "bundle", dialects=("portable",), with_logits=True)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize(
    ("operator", "opsets"),
    [
        ("ai.onnx::TopK", set(range(8, 19))),
        ("ai.onnx::GreaterOrEqual", {8, *range(12, 19)}),
        ("ai.onnx::LayerNormalization", {17, 18}),
        ("npu::NPURmsNorm", {1}),
        ("ai.onnx::RMSNormalization", None),
        ("ai.onnx::Constant", None),
        ("com.microsoft::TopK", None),
    ],
)
def test_registered_opsets(operator: str, opsets: set[int] | None) -> None:
    assert ascend_operators().get(operator) == opsets


def test_every_operator_of_the_dialect_is_registered_at_its_opset() -> None:
    assert all(OPSET in ascend_operators()[f"ai.onnx::{operator}"] for operator in ALLOWED)
    assert len(ascend_operators()) == 307
