"""Pass that computes the statistics of the vocabulary row by row, so that a row stays in the processor's cache.

The standard graph computes them for all sampled positions at once. It takes ten passes over [rows, V], which for many
rows of a large vocabulary does not fit into a cache. Here a Scan iterates over the rows, each viewed as groups of
contiguous ids, [V / G, G]:

* The best candidates are in the groups with the largest maxima. Only the members of these few groups are compared
  again. Equal candidates stay in the order of ids, because groups have contiguous ids.
* Sums are computed per group, then over groups, which loses fewer bits than one sum over V.
* The temperature and the scale of an int8 head's rounded rows form one factor per row. It is applied together with the
  subtraction of the largest logit: BatchNormalization with mean 0 and variance 1 is x * factor + bias.
* The sum of weights times logits is a dot product (FusedMatMul of com.microsoft, in parts of the row).
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.passes import common

from lopa.runtime.contract import ENTROPY, LOGITS_INDEX, TOP_K, TOPK_IDS, TOPK_LOGPROBS

MIN_VOCABULARY = 65_536
"""Smallest vocabulary for this pass. Below it, the Scan's overhead per row may outweigh the cache.

Measured for an int8 head (896 inputs) and statistics, 8 and 64 rows, two threads. At 32,768 ids they took 1.87 and 1.04
times as long. At 65,536 ids they were 1.01 and 1.33 times as fast (docs/measurements/cpu.md).
"""
_BEST_GROUP = 64
_GROUPS = range(16, 257)
"""Useful sizes of a group. 32, 64 and 128 differ by 3 %."""

_PARTS = range(16, 65)
"""Number of parts of a row whose dot products are added. One dot product over the row has an error of 7e-5."""
_LAST = np.array([-1])
_MICROSOFT = "com.microsoft"
_STATISTICS = (TOPK_IDS, TOPK_LOGPROBS, ENTROPY)


class VocabularyStatisticsPass(ir.passes.InPlacePass):
    """Pass that replaces the statistics of a large enough vocabulary by a Scan over rows.

    Graphs without statistics, or whose statistics are computed by a function, stay unchanged.
    """

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self._vocabulary = vocabulary

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the nodes. Names, types and shapes of the outputs stay the same."""
        tempered = _tempered_logits(model.graph)
        if tempered is None or self._vocabulary < MIN_VOCABULARY:
            return ir.passes.PassResult(model, modified=False)
        group = group_of_vocabulary(self._vocabulary)
        index = next(value for value in model.graph.inputs if value.name == LOGITS_INDEX)
        nodes = _Nodes("statistics")
        shape = nodes.one("Shape", index)
        rows, factors = _rows_and_factors(nodes, tempered, shape)
        by_row = nodes.one("Reshape", rows, np.array([-1, self._vocabulary // group, group]))
        factor_by_row = nodes.one("Reshape", factors, np.array([-1, 1]))
        body = _statistics_of_row(self._vocabulary // group, group)
        ids, logprobs, entropy = nodes.add("Scan", (by_row, factor_by_row), outputs=3, body=body, num_scan_inputs=2)
        of_candidates = nodes.one("Concat", shape, np.array([TOP_K]), axis=0)
        made = (
            nodes.one("Reshape", ids, of_candidates),
            nodes.one("Reshape", logprobs, of_candidates),
            nodes.one("Reshape", entropy, shape),
        )
        model.opset_imports[_MICROSOFT] = 1
        model.graph.extend(nodes.nodes)
        for value in nodes.initializers:
            model.graph.initializers.add(value)
        for name, value in zip(_STATISTICS, made, strict=True):
            _become_output(model.graph, name, value)
        common.RemoveUnusedNodesPass()(model)
        return ir.passes.PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        """Raise PostconditionError if an output is lost."""
        lost = set(_STATISTICS) - {value.name for value in model.graph.outputs}
        if lost and len(lost) < len(_STATISTICS):
            raise ir.passes.PostconditionError(f"lost outputs: {sorted(lost)}")


def group_of_vocabulary(vocabulary: int) -> int:
    """Return the number of ids per group (G); 1 if no useful size divides the vocabulary, e.g. a prime."""
    sizes = [size for size in _GROUPS if vocabulary % size == 0]
    return min(sizes, key=lambda size: abs(math.log(size / _BEST_GROUP)), default=1)


class _Nodes:
    """Builder of nodes. Names begin with the scope, because a body's names must differ from the outer graph's."""

    def __init__(self, scope: str) -> None:
        self._scope = scope
        self.nodes: list[ir.Node] = []
        self.initializers: list[ir.Value] = []

    def add(
        self,
        op: str,
        inputs: Sequence[ir.Value | npt.NDArray[Any]],
        *,
        outputs: int,
        domain: str = "",
        **attributes: float | ir.Graph,
    ) -> Sequence[ir.Value]:
        """Add a node and return its outputs. Arrays become initializers."""
        values = [each if isinstance(each, ir.Value) else self._initializer(each) for each in inputs]
        name = f"{self._scope}/{op}_{len(self.nodes)}"
        node = ir.node(op, values, attributes, domain=domain, num_outputs=outputs, name=name)
        for number, value in enumerate(node.outputs):
            value.name = f"{name}/{number}"
        self.nodes.append(node)
        return node.outputs

    def one(self, op: str, *inputs: ir.Value | npt.NDArray[Any], domain: str = "", **attributes: float) -> ir.Value:
        """Add a node and return its only output."""
        (value,) = self.add(op, inputs, outputs=1, domain=domain, **attributes)
        return value

    def _initializer(self, array: npt.NDArray[Any]) -> ir.Value:
        tensor = ir.tensor(array, name=f"{self._scope}/constant_{len(self.initializers)}")
        shape, kind = ir.Shape(array.shape), ir.TensorType(tensor.dtype)
        self.initializers.append(ir.Value(name=tensor.name, shape=shape, type=kind, const_value=tensor))
        return self.initializers[-1]


def _tempered_logits(graph: ir.Graph) -> ir.Node | None:
    """Return the node that divides the logits by the temperature, before TopK, or None."""
    ids = next((value for value in graph.outputs if value.name == TOPK_IDS), None)
    best = ids.producer() if ids is not None else None
    if best is None or best.op_type != "TopK" or best.inputs[0] is None:
        return None
    division = best.inputs[0].producer()
    return division if division is not None and division.op_type == "Div" else None


def _rows_and_factors(nodes: _Nodes, tempered: ir.Node, shape: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return rows [R, B, Q, V] and factors [R, B, Q, 1], whose product is the tempered logits.

    For a product of rounded rows, the scales of the rows become part of the factor, unless the logits are an output.
    The next node multiplies by them (lopa.export.graph.quantize_pass).
    """
    logits, temperature = tempered.inputs
    assert logits is not None
    assert temperature is not None
    scaled = logits.producer()
    if scaled is not None and scaled.op_type == "Mul" and not logits.is_graph_output() and len(logits.uses()) == 1:
        product, scales = scaled.inputs
        assert product is not None
        assert scales is not None
        if ir.convenience.get_const_tensor(scales) is None:  # otherwise it is a constant factor of the model's logits
            return product, nodes.one("Div", scales, temperature)
    of_rows = nodes.one("Concat", shape, np.array([1]), axis=0)
    return logits, nodes.one("Expand", nodes.one("Reciprocal", temperature), of_rows)


def _statistics_of_row(groups: int, group: int) -> ir.Graph:
    """Return the Scan's body, which computes the statistics of one row.

    It maps logits float32 [groups, group] and a factor [1] to ids int64 [K], log-probabilities float32 [K] and the
    entropy float32 [].
    """
    row = ir.Value(name="row/logits", shape=ir.Shape((groups, group)), type=ir.TensorType(ir.DataType.FLOAT))
    factor = ir.Value(name="row/factor", shape=ir.Shape((1,)), type=ir.TensorType(ir.DataType.FLOAT))
    nodes = _Nodes("row")
    top, ids = _candidates(nodes, row, factor) if group == 1 else _candidates_by_group(nodes, row, factor, group)
    largest = nodes.one("Slice", top, np.array([0]), np.array([1]))
    above = _scaled_and_shifted(nodes, row, factor, nodes.one("Neg", largest), (groups, group))
    weights = nodes.one("Exp", above)
    total = _sum(nodes, weights)
    log_total = nodes.one("Log", total)
    logprobs = nodes.one("Sub", nodes.one("Sub", top, largest), log_total)
    mean_above = nodes.one("Div", _sum_of_products(nodes, weights, above, groups * group), total)
    entropy = nodes.one("Squeeze", nodes.one("Sub", log_total, mean_above), _LAST)
    for value, dtype, shape in (
        (ids, ir.DataType.INT64, (TOP_K,)),
        (logprobs, ir.DataType.FLOAT, (TOP_K,)),
        (entropy, ir.DataType.FLOAT, ()),
    ):
        value.type, value.shape = ir.TensorType(dtype), ir.Shape(shape)
    return ir.Graph(
        [row, factor], [ids, logprobs, entropy], nodes=nodes.nodes, initializers=nodes.initializers, name="row"
    )


def _candidates(nodes: _Nodes, row: ir.Value, factor: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return the K largest of [V, 1] times `factor`, and their ids."""
    scaled = nodes.one("Mul", nodes.one("Reshape", row, _LAST), factor)
    top, ids = nodes.add("TopK", (scaled, np.array([TOP_K])), outputs=2)
    return top, ids


def _candidates_by_group(nodes: _Nodes, row: ir.Value, factor: ir.Value, group: int) -> tuple[ir.Value, ir.Value]:
    """Return the K largest of [V / G, G] times `factor`, and their ids, from the K groups with the largest maxima.

    Maxima and members are multiplied before the comparison, as in the standard graph, because the product of different
    logits may be equal. The groups are sorted by id, because TopK takes the first of equal values.
    """
    count, size = np.array([TOP_K]), np.array(group)
    maxima = nodes.one("Mul", nodes.one("ReduceMax", row, _LAST, keepdims=0), factor)
    _, largest = nodes.add("TopK", (maxima, count), outputs=2)
    groups_by_id, _ = nodes.add("TopK", (largest, count), outputs=2, largest=0)
    members = nodes.one("Mul", nodes.one("Reshape", nodes.one("Gather", row, groups_by_id), _LAST), factor)
    top, places = nodes.add("TopK", (members, count), outputs=2)
    groups = nodes.one("Gather", groups_by_id, nodes.one("Div", places, size))
    return top, nodes.one("Add", nodes.one("Mul", groups, size), nodes.one("Mod", places, size))


def _scaled_and_shifted(
    nodes: _Nodes, row: ir.Value, factor: ir.Value, shift: ir.Value, shape: tuple[int, int]
) -> ir.Value:
    """Return `row` * `factor` + `shift`, [groups, group], in one pass over memory."""
    as_channel = nodes.one("Reshape", row, np.array([1, 1, -1]))
    mean, variance = np.zeros(1, np.float32), np.ones(1, np.float32)
    made = nodes.one("BatchNormalization", as_channel, factor, shift, mean, variance, epsilon=0.0)
    return nodes.one("Reshape", made, np.array(shape))


def _sum_of_products(nodes: _Nodes, a: ir.Value, b: ir.Value, count: int) -> ir.Value:
    """Return the dot product, [1], of two arrays of `count` numbers."""
    parts = next((parts for parts in _PARTS if count % parts == 0), 1)
    of_parts = np.array([parts, 1, -1])
    vectors = (nodes.one("Reshape", each, of_parts) for each in (a, b))
    products = nodes.one("FusedMatMul", *vectors, domain=_MICROSOFT, transB=1)
    return nodes.one("ReduceSum", nodes.one("Reshape", products, _LAST), _LAST, keepdims=1)


def _sum(nodes: _Nodes, x: ir.Value) -> ir.Value:
    """Return the sum, [1], of the values [groups, group]."""
    return nodes.one("ReduceSum", nodes.one("ReduceSum", x, _LAST, keepdims=0), _LAST, keepdims=1)


def _become_output(graph: ir.Graph, name: str, new: ir.Value) -> None:
    """Replace the graph's output `name` by the value `new`."""
    place = [value.name for value in graph.outputs].index(name)
    old = graph.outputs[place]
    new.shape, new.type, old.name, new.name = old.shape, old.type, f"{name}/replaced", name
    graph.outputs[place] = new
