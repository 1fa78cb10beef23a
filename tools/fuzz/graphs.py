"""Mutations of an ONNX model, field by field. Knows the format's messages, not what a graph computes."""

import random

from onnx import AttributeProto, ModelProto, TensorProto

from tools.fuzz.mutations import NUMBERS, TEXTS, short

_OPERATORS = (
    *("Add", "MatMul", "Reshape", "Gather", "Identity", "Expand", "Loop", "If", "NoSuchOperator", "Tile", "Range"),
)


def changed_graph(rng: random.Random, model: ModelProto) -> str:
    """Change one thing, or sometimes two, and say what."""
    changes = (_constant, _constant, _attribute, _input, _operator, _wire, _node, _external, _tensor, _version)
    return "; ".join(rng.choice(changes)(rng, model) for _ in range(rng.choice([1, 1, 1, 2])))


def _whole(rng: random.Random) -> int:
    small = [0, 1, -1, 2, 3, 5, 63, 64, 65, 192, 1024]
    return int(rng.choice([each for each in NUMBERS if isinstance(each, int) and abs(each) < 2**63] + small * 2))


def _constants(model: ModelProto) -> list[TensorProto]:
    inline = [each for each in model.graph.initializer if each.data_location != TensorProto.EXTERNAL]
    nodes = [a.t for node in model.graph.node if node.op_type == "Constant" for a in node.attribute if a.HasField("t")]
    return inline + nodes


def _constant(rng: random.Random, model: ModelProto) -> str:
    found = [each for each in _constants(model) if each.raw_data or each.int64_data or each.float_data]
    if not found:
        return _attribute(rng, model)
    tensor = rng.choice(found)
    if tensor.data_type == TensorProto.INT64 and tensor.raw_data:
        at = rng.randrange(len(tensor.raw_data) // 8) * 8
        number = _whole(rng)
        tensor.raw_data = tensor.raw_data[:at] + number.to_bytes(8, "little", signed=True) + tensor.raw_data[at + 8 :]
        return f"constant {tensor.name} has {number}"
    if tensor.raw_data:
        at = rng.randrange(len(tensor.raw_data))
        piece = rng.choice([b"\xff\xff\x7f\x7f", b"\0\0\xc0\x7f", rng.randbytes(4), b""])
        tensor.raw_data = tensor.raw_data[:at] + piece + tensor.raw_data[at + 4 :]
        return f"constant {tensor.name} has {piece!r} at {at}"
    values = tensor.int64_data or tensor.float_data
    values[rng.randrange(len(values))] = _whole(rng) if tensor.int64_data else 1e30
    return f"constant {tensor.name} is another"


def _attribute(rng: random.Random, model: ModelProto) -> str:
    found = [(node, each) for node in model.graph.node for each in node.attribute]
    node, attribute = rng.choice(found)
    if attribute.type == AttributeProto.INT:
        attribute.i = _whole(rng)
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = float(rng.choice([0.0, -1.0, 1e30, float("nan"), float("inf")]))
    elif attribute.type == AttributeProto.INTS and attribute.ints:
        attribute.ints[rng.randrange(len(attribute.ints))] = _whole(rng)
    elif attribute.type == AttributeProto.STRING:
        attribute.s = rng.choice(TEXTS).encode("utf-8", "replace")
    else:
        node.attribute.remove(attribute)
        return f"{node.op_type} without {attribute.name}"
    return f"{node.op_type}.{attribute.name} is another"


def _input(rng: random.Random, model: ModelProto) -> str:
    graph = model.graph
    value = rng.choice([*graph.input, *graph.output])
    way = rng.randrange(5)
    tensor = value.type.tensor_type
    if way == 0:
        tensor.elem_type = rng.choice([1, 2, 3, 6, 7, 9, 10, 11, 16, 0, 99])
        return f"{value.name} has the type {tensor.elem_type}"
    if way == 1 and tensor.shape.dim:
        axis = rng.randrange(len(tensor.shape.dim))
        tensor.shape.dim[axis].dim_value = _whole(rng)
        return f"{value.name} has {tensor.shape.dim[axis].dim_value} on axis {axis}"
    if way == 2 and tensor.shape.dim:
        del tensor.shape.dim[rng.randrange(len(tensor.shape.dim))]
        return f"{value.name} without an axis"
    if way == 3:
        old = value.name
        value.name = rng.choice([*(each.name for each in graph.input), *TEXTS[:6]]).encode("utf-8", "replace").decode()
        return f"{old} is named {short(value.name)}"
    (graph.input if value in graph.input else graph.output).remove(value)
    return f"{value.name} is gone"


def _operator(rng: random.Random, model: ModelProto) -> str:
    node = rng.choice(model.graph.node)
    old, node.op_type = node.op_type, rng.choice([*_OPERATORS, rng.choice(model.graph.node).op_type])
    if rng.random() < 0.2:
        node.domain = rng.choice(["com.microsoft", "lopa", "nowhere"])
    return f"{old} is {node.domain}.{node.op_type}"


def _wire(rng: random.Random, model: ModelProto) -> str:
    node = rng.choice([each for each in model.graph.node if each.input])
    names = [name for each in model.graph.node for name in (*each.output, *each.input)]
    at = rng.randrange(len(node.input))
    node.input[at] = rng.choice([*rng.sample(names, min(5, len(names))), "", "nothing"])
    return f"input {at} of a {node.op_type} is {node.input[at]!r}"


def _node(rng: random.Random, model: ModelProto) -> str:
    nodes = model.graph.node
    at = rng.randrange(len(nodes))
    name = nodes[at].op_type
    if rng.random() < 0.5:
        del nodes[at]
        return f"a {name} less"
    nodes.add().CopyFrom(nodes[at])
    return f"a {name} twice"


def _external(rng: random.Random, model: ModelProto) -> str:
    tensor = rng.choice([each for each in model.graph.initializer if each.external_data])
    entry = rng.choice(tensor.external_data)
    if entry.key == "location":
        entry.value = rng.choice(["..", "/dev/zero", "/etc/passwd", "manifest.json", "", "nothing", "../x", "a" * 300])
    else:
        entry.value = rng.choice([str(_whole(rng)), "", "x", "1e9", "9" * 400])
    return f"{tensor.name}: {entry.key} = {short(entry.value)}"


def _tensor(rng: random.Random, model: ModelProto) -> str:
    tensor = rng.choice(model.graph.initializer)
    if rng.random() < 0.5 and tensor.dims:
        tensor.dims[rng.randrange(len(tensor.dims))] = _whole(rng)
        return f"{tensor.name} has the shape {list(tensor.dims)}"
    tensor.data_type = rng.choice([1, 6, 7, 9, 10, 11, 16, 21, 22, 99])
    return f"{tensor.name} has the type {tensor.data_type}"


def _version(rng: random.Random, model: ModelProto) -> str:
    if rng.random() < 0.3:
        model.ir_version = _whole(rng)
        return f"ir_version {model.ir_version}"
    entry = rng.choice(model.opset_import)
    entry.version = _whole(rng)
    return f"opset {entry.version}"
