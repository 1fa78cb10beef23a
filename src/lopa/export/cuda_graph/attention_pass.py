"""Pass that replaces attention, and what makes its queries, keys and values, by SplitRotary and BranchAttention."""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from lopa.export.cuda_graph.nodes import (
    FusedInputs,
    OtherFormError,
    constant_ints,
    expect,
    has,
    insert,
    only_use,
    producer,
    source,
)
from lopa.runtime.bundle.manifest import ModelDimensions
from lopa.runtime.contract import (
    ATTENTION_SCRATCH,
    ATTENTION_START,
    ATTENTION_WORK,
    CACHE,
    POSITION_IDS,
    PREFIX_MASK,
    WINDOW_MASK,
    past_names,
    window_names,
)

_SWAPPED = (0, 2, 1, 3)
"""Permutation between [N, W, heads, D] and [N, heads, W, D]."""
_TO_END = 2**63 - 1
"""End of a traced slice without an end."""


@dataclass(frozen=True, eq=False)
class _Heads:
    """Queries, keys or values."""

    rows: ir.Value
    """Rows [N, W, heads * D] before the norm and the rotation."""
    norm: ir.Node | None
    angles: tuple[ir.Value | None, ...]
    """Cosines and sines, or nothing for values."""


@dataclass(frozen=True, eq=False)
class _Form:
    """Parts of one attention of the standard graph."""

    heads: tuple[_Heads, _Heads, _Heads]
    """Query, key and value."""
    past: list[ir.Value]
    """Keys and values of the prefix."""
    new: list[ir.Value]
    """Outputs of the graph with the window's keys and values."""
    attended: ir.Value
    """Result [N, W, heads * D]."""


class BranchAttentionPass(ir.passes.InPlacePass):
    """Pass that replaces every attention over a request's expanded prefix and its own window.

    The products of query, key and value become one if their matrices have one type.
    """

    def __init__(self, dimensions: ModelDimensions, fused: FusedInputs) -> None:
        super().__init__()
        self._sizes = dimensions
        self._fused = fused

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the nodes, and add the inputs of the attention. Raises OtherFormError."""
        inputs = {value.name: value for value in model.graph.inputs}
        outputs = {value.name: value for value in model.graph.outputs}
        names, new = past_names(self._sizes.layers), [outputs.get(name) for name in window_names(self._sizes.layers)]
        attentions = [node for node in model.graph if node.op_type == "Attention"]
        expect(len(attentions) == self._sizes.layers)
        forms = [
            (node, self._form(node, layer, inputs, new[2 * layer : 2 * layer + 2]))
            for layer, node in enumerate(attentions)
        ]
        expect([value.name for _, form in forms for value in form.past] == names)
        types = {
            CACHE: inputs[names[0]].type,
            ATTENTION_WORK: ir.TensorType(ir.DataType.INT32),
            ATTENTION_SCRATCH: ir.TensorType(ir.DataType.FLOAT),
        }
        added = [ir.Value(name=name, shape=ir.Shape([name]), type=dtype) for name, dtype in types.items()]
        model.graph.inputs.extend(added)
        for layer, (node, form) in enumerate(forms):
            self._replace(node, form, layer, added)
        return ir.passes.PassResult(model, modified=True)

    def _form(
        self, attention: ir.Node, layer: int, inputs: dict[str | None, ir.Value], outputs: Sequence[ir.Value | None]
    ) -> _Form:
        """Return the parts of an attention. Raises OtherFormError."""
        sizes, canvas = self._sizes, self._sizes.canvas
        expect(has(attention, is_causal=0, softcap=0, scale=0 if canvas is None else 1))
        query, keys, values, mask = attention.inputs
        of_row = producer(source(mask, "Unsqueeze", "Reshape"), "Concat")
        prefix, window = (None, None) if of_row is None else of_row.inputs
        if _slides(sizes, layer):
            prefix = _from_start(prefix, None, inputs)
            window = _from_start(window, inputs[POSITION_IDS], inputs)
        expect(window is inputs[WINDOW_MASK])
        expect(source(prefix, "Expand", "Unsqueeze", "Unsqueeze") is inputs[PREFIX_MASK])
        heads_of_cache = () if canvas is None else ("Transpose", "Reshape", "Squeeze")
        kv_heads, size = sizes.attention_heads(layer)
        past, new = [], []
        for rows in (keys, values):
            joined = producer(rows, "Concat")
            if joined is None or len(joined.inputs) != 2:
                raise OtherFormError
            cached = source(joined.inputs[0], "Reshape", "Expand", "Unsqueeze", *heads_of_cache)
            narrow = producer(cached, "Slice")
            if narrow is not None:  # a layer with fewer channels than the widest
                expect([constant_ints(each) for each in narrow.inputs[1:]] == [[0], [kv_heads * size], [3], [1]])
            past.append(cached if narrow is None else source(cached, "Slice"))
            new.append(joined.inputs[1])
        counts = (sizes.heads, kv_heads, kv_heads)
        q, k, v = (self._heads(value, (count, size)) for value, count in zip((query, *new), counts, strict=True))
        expect(len(q.angles) == 2 and k.angles == q.angles and not v.angles)
        expect(v.norm is None if canvas is None else _is_plain(v.norm) and _epsilon(v) == _epsilon(k))
        expect((q.norm is None) == (k.norm is None) and _epsilon(q) == _epsilon(k))
        turned = only_use(attention.outputs[0], "Transpose")
        expect(tuple(turned.attributes["perm"].as_ints()) == _SWAPPED)
        attended = only_use(turned.outputs[0], "Reshape").outputs[0]
        pairs = zip(new, outputs, strict=True)
        return _Form((q, k, v), past, [_window_output(*pair, canvas is not None) for pair in pairs], attended)

    def _heads(self, value: ir.Value | None, expected: tuple[int, int]) -> _Heads:
        """Return what heads [N, heads, W, D] of the expected number and size are made of. Raises OtherFormError."""
        partial = producer(value, "Concat")
        rotary = producer(value if partial is None else partial.inputs[0], "RotaryEmbedding")
        angles: tuple[ir.Value | None, ...] = ()
        if rotary is not None:
            expect(has(rotary, interleaved=0, rotary_embedding_dim=0))
            value, *others = rotary.inputs
            angles = tuple(others)
            if partial is not None:
                value = _source_of_channels(value, partial.inputs[1], angles[0])
        norm = producer(value, "RMSNormalization")
        expect(norm is None or has(norm, axis=-1, stash_type=1))
        swapped = value if norm is None else norm.inputs[0]
        rows = source(swapped, "Transpose", "Reshape")
        turned = producer(swapped, "Transpose")
        shape = None if swapped is None else swapped.shape
        expect(turned is not None and tuple(turned.attributes["perm"].as_ints()) == _SWAPPED)
        expect(shape is not None and (shape[1], shape[3]) == expected)
        return _Heads(rows, norm, angles)

    def _replace(self, attention: ir.Node, form: _Form, layer: int, added: list[ir.Value]) -> None:
        sizes, heads = self._sizes, form.heads
        kv_heads, size = sizes.attention_heads(layer)
        attributes = {"heads": sizes.heads, "kv_heads": kv_heads, "head_size": size}
        of_values, of_scores = dict[str, float](), dict[str, float]()
        if sizes.canvas is not None:
            attributes["width"] = sizes.cache_head_size
            of_values = {"value_norm": 1, "shared_value": int(heads[1].rows is heads[2].rows)}
            of_scores = {"scale": 1.0, "sliding": int(_slides(sizes, layer))}
        label = "qk" if of_values.get("shared_value") else "qkv"
        rows: list[ir.Value | None] = [each.rows for each in heads[: len(label)]]
        biased = [node for each in rows if (node := producer(each, "Add")) is not None]
        biases = self._fused.join([[node.inputs[1] for node in biased]], label) if len(biased) == len(rows) else None
        bias = None if biases is None else biases[0]
        if bias is not None:
            rows = [node.inputs[0] for node in biased]
        fused = self._fused.product(rows, label)
        query, key, value = [*(rows if fused is None else [fused]), None, None][:3]
        norms = [None if each.norm is None else each.norm.inputs[1] for each in heads[:2]]
        arguments = [query, *heads[0].angles, key, value, bias, *norms]
        of_rows = {**attributes, **of_values, "epsilon": _epsilon(heads[0])}
        rotated, *new = insert(attention, "SplitRotary", arguments, [None, *form.new], of_rows)
        rotated.type = attention.outputs[0].type
        of_scores = {**attributes, **of_scores, "layer": layer}
        insert(attention, "BranchAttention", [rotated, *new, *added], [form.attended], of_scores)


def _slides(sizes: ModelDimensions, layer: int) -> bool:
    """Return True for a layer whose rows see cached rows from a start on."""
    return sizes.canvas is not None and layer not in sizes.canvas.full_layers


def _from_start(
    mask: ir.Value | None, positions: ir.Value | None, inputs: dict[str | None, ir.Value]
) -> ir.Value | None:
    """Return the mask to which `mask` adds that positions, or all numbers from 0 on, are not below the start."""
    both = producer(mask, "And")
    order = producer(None if both is None else both.inputs[1], "GreaterOrEqual")
    if both is None or order is None:
        raise OtherFormError
    expect(source(order.inputs[1], "Unsqueeze") is inputs[ATTENTION_START])
    counted = producer(order.inputs[0], "Range")
    if positions is None:
        expect(counted is not None and [constant_ints(counted.inputs[place]) for place in (0, 2)] == [[0], [1]])
    else:
        expect(source(order.inputs[0], "Unsqueeze") is positions)
    return both.inputs[0]


def _is_plain(norm: ir.Node | None) -> bool:
    """Return True for a norm without a weight."""
    value = None if norm is None else norm.inputs[1]
    weight = None if value is None else ir.convenience.get_const_tensor(value)
    return weight is not None and bool((weight.numpy() == 1).all())


def _epsilon(heads: _Heads) -> float:
    return 0.0 if heads.norm is None else heads.norm.attributes["epsilon"].as_float()


def _source_of_channels(rotated: ir.Value | None, rest: ir.Value | None, angles: ir.Value | None) -> ir.Value:
    """Return the value of which `rotated` are the channels with an angle, and `rest` the others."""
    whole = source(rotated, "Slice")
    half = angles.shape[-1] if angles is not None and angles.shape is not None else None
    size = 2 * half if isinstance(half, int) else 0
    found = []
    for part in (rotated, rest):
        node = producer(part, "Slice")
        expect(node is not None and node.inputs[0] is whole)
        found.append([] if node is None else [constant_ints(each) for each in node.inputs[1:]])
    expect(found == [[[0], [size], [3], [1]], [[size], [_TO_END], [3], [1]]])
    return whole


def _window_output(heads: ir.Value | None, output: ir.Value | None, is_wide: bool) -> ir.Value:
    """Return the graph's output if it has these keys or values, as rows of all heads if `is_wide`."""
    rows = source(output, "Reshape")
    if is_wide:
        rows = source(rows, "Unsqueeze")
        rows = rows if producer(rows, "Concat") is None else source(rows, "Concat")  # zeros follow the channels
        rows = source(rows, "Reshape", "Transpose")
    expect(output is not None and rows is heads)
    return rows if output is None else output
