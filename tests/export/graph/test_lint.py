"""The base of the linters: queries of rules, and violations as text. Rules have their own tests."""

import numpy as np
import onnx
import onnx.helper as make
import onnx.numpy_helper
import pytest

from lopa.export.graph.lint import LintedGraph, Violation


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


def test_a_place_is_a_node_or_a_value_or_the_model() -> None:
    graph = _graph(("", 17))
    named, unnamed = graph.nodes
    places = [
        graph.violation("r", "f", "m", node=named, name="y"),
        graph.violation("r", "f", "m", node=unnamed),
        graph.violation("r", "f", "m", name="x"),
        graph.violation("r", "f", "m"),
    ]
    assert [(each.operator, each.node) for each in places] == [
        ("MatMul", "product"),
        ("FusedThing", "z"),
        ("", "x"),
        ("", ""),
    ]


@pytest.mark.parametrize(
    ("violation", "line"),
    [
        (
            Violation("rank", "layers.0/Add", "Add", 17, None, 5, "x has 5 axes", "fold axes until there are 4"),
            "Add layers.0/Add (opset 17, 5 axes): x has 5 axes; fold axes until there are 4",
        ),
        (
            Violation("type", "node", "Sin", 23, "DOUBLE", 1, "x is DOUBLE", "put a Cast in front of it"),
            "Sin node (opset 23, DOUBLE, 1 axes): x is DOUBLE; put a Cast in front of it",
        ),
        (
            Violation("opset", "", "", 8, None, None, "opset 8", "export it at opset 23"),
            "model (opset 8): opset 8; export it at opset 23",
        ),
    ],
)
def test_a_line_names_place_opset_type_axes_and_remedy(violation: Violation, line: str) -> None:
    assert str(violation) == line


def test_the_two_names_of_the_standard_domain_count_as_one() -> None:
    """Gelu exists since opset 20."""
    x = make.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])
    graph = make.make_graph([make.make_node("Gelu", ["x"], ["y"])], "g", [x], [make.make_empty_tensor_value_info("y")])
    imports = [make.make_opsetid("", 16), make.make_opsetid("ai.onnx", 23)]
    assert LintedGraph(make.make_model(graph, opset_imports=imports)).sizes("y") == [2]
