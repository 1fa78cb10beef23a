"""Graphs that take cosines and sines of rotary angles as inputs, in place of positions (docs/concepts/contract.md).

The host computes the angles in float32 (lopa.runtime.contract.rotary), so that they are right on hardware that computes
in float16.
"""

from collections.abc import Iterator

import onnx_ir as ir
from onnx_ir.passes import common

from lopa.runtime.contract import POSITION_IDS, ROTARY_COS, ROTARY_SIN
from lopa.runtime.contract.rotary import ROTARY_INPUTS

_INPUT_BY_OPERATOR = {"Cos": ROTARY_COS, "Sin": ROTARY_SIN}


def with_rotary_inputs(model: ir.Model) -> ir.Model:
    """Return `model`, a standard or portable graph, with the inputs ROTARY_COS and ROTARY_SIN for POSITION_IDS.

    The model is changed in place. A graph that has these inputs stays as it is. Raises onnx_ir.passes.PassError for a
    graph whose cosines and sines do not come from positions and constant frequencies.
    """
    passes = ir.passes.Sequential(RotaryInputsPass(), common.RemoveUnusedNodesPass())
    return passes(model).model


class RotaryInputsPass(ir.passes.InPlacePass):
    """Pass that replaces the outputs of Cos and Sin by inputs. It leaves the nodes that computed them, now unused."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the outputs, and every other use of the positions."""
        graph = model.graph
        names = [value.name for value in graph.inputs]
        if set(ROTARY_INPUTS) <= set(names):
            return ir.passes.PassResult(model, modified=False)
        if POSITION_IDS not in names:
            raise ir.passes.PassError(f"the graph has no input {POSITION_IDS}")
        place = names.index(POSITION_IDS)
        positions = graph.inputs[place]
        if positions.shape is None:
            raise ir.passes.PassError(f"the input {POSITION_IDS} has no shape")
        sources = {node: _factors(node) for node in graph if node.op_type in _INPUT_BY_OPERATOR}
        if {node.op_type for node in sources} != set(_INPUT_BY_OPERATOR):
            raise ir.passes.PassError("the graph computes no cosines or no sines")
        sizes = {frequencies.size for frequencies, _ in sources.values()}
        if len(sizes) > 1:
            raise ir.passes.PassError(f"the graph has angles of {sorted(sizes)} frequencies, expected one number")
        shape = ir.Shape([*positions.shape, sizes.pop()])
        inputs = {
            name: ir.Value(name=name, shape=shape.copy(), type=ir.TensorType(ir.DataType.FLOAT))
            for name in ROTARY_INPUTS
        }
        for node, (frequencies, rows) in sources.items():
            _replace(node, inputs[_INPUT_BY_OPERATOR[node.op_type]], rows, positions, frequencies.size)
        _use_other_shape(positions, inputs[ROTARY_COS])
        graph.inputs[place : place + 1] = list(inputs.values())
        return ir.passes.PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        """Raise PostconditionError if nodes whose results are used still take positions."""
        names = [value.name for value in model.graph.inputs]
        if POSITION_IDS in names or not set(ROTARY_INPUTS) <= set(names):
            raise ir.passes.PostconditionError(f"the graph has the inputs {names}")


def _factors(node: ir.Node) -> tuple[ir.TensorProtocol, ir.Value]:
    """Return the constant frequencies and the value with the positions, whose product `node` takes the cosine of.

    The second value is the positions, possibly reshaped, with an axis of 1 at the end.
    """
    product = _producer(node.inputs[0], "Mul")
    if product is not None:
        for factor, other in ((0, 1), (1, 0)):
            value, rows = product.inputs[factor], product.inputs[other]
            frequencies = None if value is None else ir.convenience.get_const_tensor(value)
            cast = _producer(rows, "Cast")
            if frequencies is not None and cast is not None and cast.inputs[0] is not None:
                return frequencies, cast.inputs[0]
    raise ir.passes.PassError(f"{node.name}: the angles are no product of cast positions and constant frequencies")


def _replace(node: ir.Node, angles: ir.Value, rows: ir.Value, positions: ir.Value, size: int) -> None:
    """Replace the output of `node`, [.., size], by `angles` in the shape that `rows`, [.., 1], has without its end."""
    unsqueeze = _producer(rows, "Unsqueeze")
    source = None if unsqueeze is None else unsqueeze.inputs[0]
    reshape = _producer(source, "Reshape")
    if reshape is not None and reshape.inputs[0] is positions and reshape.inputs[1] is not None:
        angles = _reshaped(reshape, angles, reshape.inputs[1], size)
        angles.shape, angles.type = node.outputs[0].shape, ir.TensorType(ir.DataType.FLOAT)
    elif source is not positions:
        raise ir.passes.PassError(f"{node.name}: the angles do not come from {POSITION_IDS}")
    node.outputs[0].replace_all_uses_with(angles)


def _reshaped(reshape: ir.Node, angles: ir.Value, target: ir.Value, size: int) -> ir.Value:
    """Insert the nodes that give `angles` the target of `reshape` and an axis of `size`. Return their result."""
    name = f"{angles.name}/Reshape"
    last = ir.node("Constant", [], {"value_ints": [size]}, name=f"{name}/size")
    whole = ir.node("Concat", [target, last.outputs[0]], {"axis": 0}, name=f"{name}/target")
    node = ir.node("Reshape", [angles, whole.outputs[0]], {"allowzero": 0}, name=name)
    for part, suffix in ((last, "size"), (whole, "target"), (node, "rows")):
        part.outputs[0].name = f"{angles.name}/{suffix}"
    reshape.prepend([last, whole, node])
    return node.outputs[0]


def _use_other_shape(positions: ir.Value, angles: ir.Value) -> None:
    """Read every size of `positions` from `angles`, which has one axis more."""
    assert positions.shape is not None  # the caller has checked it
    rank = len(positions.shape)
    for node in _users(positions):
        if node.op_type == "Shape":
            start = node.attributes["start"].as_int() if "start" in node.attributes else 0
            end = node.attributes["end"].as_int() if "end" in node.attributes else rank
            node.attributes["start"] = ir.AttrInt64("start", start + rank if start < 0 else start)
            node.attributes["end"] = ir.AttrInt64("end", end + rank if end < 0 else min(end, rank))
            node.replace_input_with(0, angles)


def _users(value: ir.Value) -> Iterator[ir.Node]:
    return iter(tuple(dict.fromkeys(use.node for use in value.uses())))


def _producer(value: ir.Value | None, operator: str) -> ir.Node | None:
    """Return the node that computes `value` if it has this operator."""
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type == operator and node.domain in ("", "ai.onnx") else None
