"""Mutations of an ONNX model, field by field. They follow the protobuf types, but ignore the meaning."""

import random
from collections.abc import MutableSequence
from typing import Any

from onnx import ModelProto

from tools.fuzz.mutations import NUMBERS, TEXTS, short

_DATA_TYPES = (0, 1, 2, 3, 6, 7, 9, 10, 11, 16, 21, 22, 99)
_OPERATORS = (
    *("Add", "MatMul", "Reshape", "Gather", "Expand", "Loop", "If", "NoSuchOperator", "Tile", "Range", "Identity"),
)
_PLACES = ("..", "/dev/zero", "/etc/passwd", "manifest.json", "", "nothing", "../x", "a" * 300, "1e9", "9" * 400)
_DOMAINS = ("com.microsoft", "lopa", "nowhere")
_UNUSED = {"AttributeProto": ("name", "type", "ref_attr_name")}
"""Fields, by message, whose mutation is rejected immediately. Mutations of metadata_props are never read."""
_FLOATS = (0.0, -1.0, 1e30, float("nan"), float("inf"))
_PIECES = (b"\xff\xff\x7f\x7f", b"\0\0\xc0\x7f", b"")
_NUMBERS = [each for each in NUMBERS if isinstance(each, int) and abs(each) < 2**63] + [0, 1, -1, 2, 64, 192, 1024] * 3


def changed_graph(rng: random.Random, model: ModelProto) -> str:
    """Change one field, sometimes two, and describe the change."""
    return "; ".join(_change_one(rng, model) for _ in range(rng.choice([1, 1, 1, 2])))


def _change_one(rng: random.Random, model: ModelProto) -> str:
    graph = model.graph
    attributes = [each for node in graph.node for each in node.attribute]
    constants = [*graph.initializer, *(each.t for each in attributes if each.HasField("t"))]
    places = [
        *[([each for each in constants if each.raw_data], "raw_data")] * 3,
        *[(attributes, "")] * 2,
        ([*graph.input, *graph.output], ""),
        *[(graph.node, name) for name in ("op_type", "op_type", "op_type", "domain")],
        ([each for each in graph.node if each.input], "input"),
        ([entry for tensor in graph.initializer for entry in tensor.external_data], "value"),
        (graph.initializer, ""),
        ([model], "ir_version"),
        (model.opset_import, "version"),
        *[([graph], name) for name in ("node", "input", "output", "initializer")],
    ]
    names = [name for node in graph.node for name in (*node.output, *node.input, node.op_type)]
    texts = [*rng.sample(names, min(9, len(names))), *_OPERATORS, *_PLACES, *_DOMAINS, rng.choice(TEXTS)]
    messages, field = rng.choice([each for each in places if each[0]])
    return _change_field(rng, rng.choice(messages), field, texts)


def _change_field(rng: random.Random, message: Any, name: str, texts: list[str]) -> str:
    """Change the field `name`, or any field of `message` or below. A named axis may get a size."""
    kind = f"{message.DESCRIPTOR.name} {getattr(message, 'name', '')}".strip()
    if kind == "Dimension" and rng.random() < 0.7:
        message.dim_value = rng.choice(_NUMBERS)
        return f"an axis has {message.dim_value}"
    if name:
        field, old = message.DESCRIPTOR.fields_by_name[name], getattr(message, name)
    else:
        unused = ("metadata_props", *_UNUSED.get(message.DESCRIPTOR.name, ()))
        present = [pair for pair in message.ListFields() if pair[0].name not in unused]
        if not present:
            return f"{kind} has nothing to change"
        field, old = rng.choice(present)
    what = f"{kind}.{field.name}"
    if hasattr(old, "ListFields"):
        return f"{kind}.{_change_field(rng, old, '', texts)}"
    if not isinstance(old, MutableSequence):
        new = _other_scalar(rng, field, old, texts)
        setattr(message, field.name, new)
        return f"{what} = {short(new)}"
    at = rng.randrange(len(old))
    if hasattr(old[at], "ListFields") and name:  # only remove or repeat messages such as nodes
        what = f"{what} {old[at].name or at}"
    elif hasattr(old[at], "ListFields"):
        return f"{kind}.{_change_field(rng, old[at], '', texts)}"
    elif rng.random() < 0.8:
        old[at] = _other_scalar(rng, field, old[at], texts)
        return f"{what}[{at}] = {short(old[at])}"
    if rng.random() < 0.5:
        del old[at]
        return f"{what} removed"
    old.append(old[at])
    return f"{what} repeated"


def _other_scalar(rng: random.Random, field: Any, old: Any, texts: list[str]) -> Any:
    """Return another value of the type of `field`."""
    if field.enum_type is not None:
        return rng.choice([each.number for each in field.enum_type.values])
    if isinstance(old, int):
        return rng.choice(_DATA_TYPES if field.type == field.TYPE_INT32 else _NUMBERS)
    if isinstance(old, float):
        return rng.choice(_FLOATS)
    if isinstance(old, str):
        return rng.choice(texts).encode("utf-8", "replace").decode()
    if field.name != "raw_data":
        return rng.choice(texts).encode("utf-8", "replace")
    step = 8 if len(old) % 8 == 0 else 4
    at = rng.randrange(len(old) // step + 1) * step
    piece = rng.choice([*_PIECES, rng.randbytes(4), *(each.to_bytes(8, "little", signed=True) for each in _NUMBERS)])
    return old[:at] + piece + old[at + (len(piece) or 4) :]
