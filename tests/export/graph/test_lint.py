"""The base of the linters: queries of rules. Rules have their own tests."""

import numpy as np
import onnx
import onnx.helper as make
import onnx.numpy_helper
import pytest

from lopa.export.graph.lint import LintedGraph


def _graph(*imports: tuple[str, int]) -> LintedGraph:
    """Return y = x [2, n] @ w [4, 3], and z by an operator of another domain, whose type cannot be inferred."""
    nodes = [
        make.make_node("MatMul", ["x", "w"], ["y"], name="product"),
        make.make_node("FusedThing", ["y"], ["z"], domain="com.microsoft"),
    ]
    x = make.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, "n"])
    weight = onnx.numpy_helper.from_array(np.zeros((4, 3), np.float32), "w")
    graph = make.make_graph(nodes, "g", [x], [make.make_empty_tensor_value_info("z")], [weight])
    return LintedGraph(make.make_model(graph, opset_imports=[make.make_opsetid(*each) for each in imports]))


@pytest.mark.parametrize(
    ("imports", "opset"),
    [([("", 17), ("com.microsoft", 1)], 17), ([("", 16), ("ai.onnx", 23)], 23), ([("", 23), ("", 17)], 23), ([], 0)],
)
def test_types_and_sizes_are_known_for_any_imported_opset(imports: list[tuple[str, int]], opset: int) -> None:
    graph = _graph(*imports)
    assert graph.opset == opset
    assert [graph.sizes(name) for name in ("x", "w", "y", "z", "?")] == [[2, None], [4, 3], [2, 3], None, None]
    assert [graph.rank(name) for name in ("x", "z")] == [2, None]
    assert [graph.dtype(name) for name in ("w", "y", "z")] == ["FLOAT", "FLOAT", None]


def test_the_two_names_of_the_standard_domain_count_as_one() -> None:
    """Gelu exists since opset 20."""
    x = make.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])
    graph = make.make_graph([make.make_node("Gelu", ["x"], ["y"])], "g", [x], [make.make_empty_tensor_value_info("y")])
    imports = [make.make_opsetid("", 16), make.make_opsetid("ai.onnx", 23)]
    assert LintedGraph(make.make_model(graph, opset_imports=imports)).sizes("y") == [2]
