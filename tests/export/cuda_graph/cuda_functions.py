"""Operators of domain lopa.cuda as ONNX functions of standard operators, with which ONNX Runtime runs a twin on CPUs.

The bodies round where the standard graph rounds. Attention takes a dense mask in place of the lists of tasks: which of
the cache's rows, then which packed rows, each row sees. Chunks of the cache follow each other.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, parser

from lopa.export.cuda_graph.nodes import insert
from lopa.export.graph.expert_forms import with_expert_operators
from lopa.export.graph.experts import EXPERTS_OPERATOR, TRACED_DOMAIN

DOMAIN = "lopa.cuda"
_BYTES = np.arange(256, dtype=np.uint8)
_TABLES = {
    "INT8": _BYTES.view(np.int8),
    "E4M3": _BYTES.view(ml_dtypes.float8_e4m3fn),
    "LOW": ((_BYTES & 15) ^ 8) - 8.0,
    "HIGH": ((_BYTES >> 4) ^ 8) - 8.0,
}
"""Numbers that bytes stand for."""
_PRODUCTS = """
RoundedProductKIND (rows, weight) => (product, workspace) {
    table = Constant <value_floats = KIND> ()
    indices = Cast <to = 6> (weight)
    matrix = Gather (table, indices)
    turned = Transpose <perm = PERM> (matrix)
    sums = MatMul (rows, turned)
    factor = Constant <value_float = 0.0000152587890625> ()
    wide = Mul (sums, factor)
    product = Cast <to = TYPE> (wide)
    workspace = Constant <value_floats = [0.0]> ()
}
RoundRowsKIND (x) => (rounded, scales) {
    wide = Cast <to = 1> (x)
    magnitudes = Abs (wide)
    last = Constant <value_ints = [-1]> ()
    largest = ReduceMax <keepdims = 1> (magnitudes, last)
    least = Constant <value_float = 1e-30> ()
    nonzero = Max (largest, least)
    greatest = Constant <value_float = GREATEST> ()
    own_scales = Div (nonzero, greatest)
    inverse_factor = Constant <value_float = 65536.0> ()
    scales = Mul (own_scales, inverse_factor)
    ratio = Div (wide, own_scales)
    one = Constant <value_float = 1.0> ()
    zero = Constant <value_float = 0.0> ()
    origin = Cast <to = STORED> (zero)
    codes = QuantizeLinear (ratio, one, origin)
    rounded = DequantizeLinear (codes, one, origin)
}"""
_INT4_PRODUCT = """
Int4Product (x, weight, scales) => (product, workspace) {
    low_table = Constant <value_floats = LOW> ()
    high_table = Constant <value_floats = HIGH> ()
    indices = Cast <to = 6> (weight)
    low_numbers = Gather (low_table, indices)
    high_numbers = Gather (high_table, indices)
    last = Constant <value_ints = [-1]> ()
    low = Unsqueeze (low_numbers, last)
    high = Unsqueeze (high_numbers, last)
    pairs = Concat <axis = -1> (low, high)
    row_shape = Constant <value_ints = [0, -1]> ()
    integers = Reshape (pairs, row_shape)
    stored = CastLike (integers, scales)
    one = Constant <value_ints = [1]> ()
    two = Constant <value_ints = [2]> ()
    shape_of_blocks = Shape (scales)
    outputs = Slice (shape_of_blocks, one, two)
    leading = Constant <value_ints = [-1, 32]> ()
    three = Concat <axis = 0> (leading, outputs)
    blocks = Reshape (stored, three)
    of_blocks = Unsqueeze (scales, one)
    numbers = Mul (blocks, of_blocks)
    matrix_shape = Concat <axis = 0> (last, outputs)
    matrix = Reshape (numbers, matrix_shape)
    product = MatMul (x, matrix)
    workspace = Constant <value_floats = [0.0]> ()
}"""
_SCALE_ROWS = """
ScaleRows (product, row_scales, column_scales) => (scaled) {
    wide = Cast <to = 1> (product)
    of_columns = Mul (wide, column_scales)
    of_rows = Mul (of_columns, row_scales)
    scaled = CastLike (of_rows, product)
}"""

_RMS_NORM = """
RmsNorm <epsilon> (x, weight) => (normed) {
    normed = RMSNormalization <axis = -1, epsilon: float = @epsilon> (x, weight)
}"""
_SKIP_RMS_NORM = """
SkipRmsNorm <epsilon> (x, delta, weight) => (normed, total) {
    shape = Shape (x)
    added = Reshape (delta, shape)
    total = Add (x, added)
    normed = RMSNormalization <axis = -1, epsilon: float = @epsilon> (total, weight)
}"""
_SWI_GLU = """
SwiGlu (gate_and_up, separate_up) => (product) {
    SPLIT
    share = Sigmoid (gate)
    silu = Mul (gate, share)
    product = Mul (silu, up)
}"""
_BRANCH_ATTENTION = """
BranchAttention <heads, kv_heads, head_size, layer>
(query, key, value, cache, work, scratch) => (attended)
{
    first = Constant <value_ints = [0]> ()
    one = Constant <value_ints = [1]> ()
    chunk_shape = Constant <value_ints = [-1, LAYERS, 2, KV_HEADS, 64, SIZE]> ()
    chunks = Reshape (cache, chunk_shape)
    layer = Constant <value_int: int = @layer> ()
    rows = Gather <axis = 1> (chunks, layer)
    parts = Transpose <perm = [1, 2, 0, 3, 4]> (rows)
    past_shape = Constant <value_ints = [2, KV_HEADS, -1, SIZE]> ()
    past = Reshape (parts, past_shape)
    past_key, past_value = Split <axis = 0, num_outputs = 2> (past)
    turned_key = Transpose <perm = [1, 0, 2]> (key)
    turned_value = Transpose <perm = [1, 0, 2]> (value)
    new_key = Unsqueeze (turned_key, first)
    new_value = Unsqueeze (turned_value, first)
    keys = Concat <axis = 2> (past_key, new_key)
    values = Concat <axis = 2> (past_value, new_value)
    seen = Cast <to = 9> (work)
    count = Shape <end = 1> (key)
    any = Constant <value_ints = [-1]> ()
    mask_shape = Concat <axis = 0> (one, one, count, any)
    mask = Reshape (seen, mask_shape)
    split = Constant <value_ints = [1, -1, HEADS, SIZE]> ()
    of_heads = Reshape (query, split)
    turned = Transpose <perm = [0, 2, 1, 3]> (of_heads)
    result = Attention (turned, keys, values, mask)
    back = Transpose <perm = [0, 2, 1, 3]> (result)
    shape = Shape (query)
    attended = Reshape (back, shape)
}"""
_TOKEN_STATISTICS = """
TokenStatistics <candidates> (logits, temperature) => (topk_ids, topk_logprobs, entropy, scratch) {
    wide = Cast <to = 1> (logits)
    of_row = Constant <value_ints = [-1, 1]> ()
    divisor = Reshape (temperature, of_row)
    z = Div (wide, divisor)
    count = Constant <value_int: int = @candidates> ()
    first = Constant <value_ints = [0]> ()
    one = Constant <value_ints = [1]> ()
    last = Constant <value_ints = [-1]> ()
    counts = Reshape (count, one)
    best, topk_ids = TopK (z, counts)
    greatest = Slice (best, first, one, last)
    above = Sub (z, greatest)
    weights = Exp (above)
    total = ReduceSum <keepdims = 1> (weights, last)
    log_total = Log (total)
    below = Sub (best, greatest)
    topk_logprobs = Sub (below, log_total)
    products = Mul (weights, above)
    weighted = ReduceSum <keepdims = 1> (products, last)
    mean = Div (weighted, total)
    surprise = Sub (log_total, mean)
    entropy = Squeeze (surprise, last)
    scratch = Constant <value_floats = [0.0]> ()
}"""


def with_functions(twin: Path, rotated: int) -> onnx.ModelProto:
    """Return the model with a function for every operator of lopa.cuda. Its weights stay in their file.

    `rotated` is the number of channels of a head that rotate, or 0 for all.
    """
    model = ir.to_proto(_with_split_experts(ir.load(twin)))
    split = list(_without_scales_and_rounding(model.graph.node))
    del model.graph.node[:]
    model.graph.node.extend(split)
    nodes = {node.op_type: node for node in model.graph.node if node.domain == DOMAIN}
    bodies = [_RMS_NORM, _SKIP_RMS_NORM, _TOKEN_STATISTICS]
    split = nodes["SplitRotary"]
    numbers = {each.name: each.i for each in split.attribute}
    heads, kv_heads, size = (numbers[name] for name in ("heads", "kv_heads", "head_size"))
    layers = sum(node.op_type == "BranchAttention" for node in model.graph.node)
    attention = _BRANCH_ATTENTION.replace("LAYERS", str(layers)).replace("KV_HEADS", str(kv_heads))
    bodies.append(attention.replace("HEADS", str(heads)).replace("SIZE", str(size)))
    bodies.append(_split_rotary(heads, kv_heads, size, rotated, [bool(name) for name in split.input]))
    if "SwiGlu" in nodes:
        is_fused = len(nodes["SwiGlu"].input) == 1
        halves = "gate, up = Split <axis = -1, num_outputs = 2> (gate_and_up)"
        separate = "gate = Identity (gate_and_up)\n    up = Identity (separate_up)"
        bodies.append(_SWI_GLU.replace("SPLIT", halves if is_fused else separate))
    for name in sorted(nodes):
        if name.startswith("Round"):
            kind = "E4M3" if name.endswith("E4M3") else "INT8"
            numbers_of = {"STORED": "17" if kind == "E4M3" else "3", "GREATEST": "448.0" if kind == "E4M3" else "127.0"}
            numbers_of |= {"PERM": "[1, 0]" if kind == "E4M3" else "[0, 1]", "TYPE": "10" if "Float16" in name else "1"}
            body = _PRODUCTS.split("\n}")["Rows" in name] + "\n}"
            body = body.replace("RoundedProductKIND", name).replace("RoundRowsKIND", name).replace("KIND", kind)
            for key, text in numbers_of.items():
                body = body.replace(key, text)
            bodies.append(body)
    bodies += [_INT4_PRODUCT] if "Int4Product" in nodes else []
    bodies += [_SCALE_ROWS] if "ScaleRows" in nodes else []
    for name, table in _TABLES.items():
        numbers_of_bytes = np.nan_to_num(table.astype(np.float32)).tolist()
        bodies = [body.replace(f"value_floats = {name}>", f"value_floats = {numbers_of_bytes}>") for body in bodies]
    header = f'<opset_import: ["" : 23], domain: "{DOMAIN}">'
    model.functions.extend(parser.parse_function(header + body) for body in bodies)
    return model


def _without_scales_and_rounding(nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes that do one thing each: scale a product, do what their name says, or round rows of a kind."""
    scale_inputs = {"SplitRotary": (8, 0), "SwiGlu": (2, 0), "SkipRmsNorm": (3, 1)}
    for node in nodes:
        if node.domain != DOMAIN:
            yield node
            continue
        kind = next(("E4M3" for each in node.attribute if each.name == "e4m3" and each.i), "INT8")
        rounds = node.op_type.startswith("Rounded") and "Product" not in node.op_type
        name, outputs, inputs = node.op_type.removeprefix("Rounded") if rounds else node.op_type, [], list(node.input)
        outputs = [f"{node.output[0]}/numbers", *node.output[2:]] if rounds else list(node.output)
        attributes = [each for each in node.attribute if each.name != "e4m3"]
        first, product = scale_inputs.get(name, (len(inputs), 0))
        if len(inputs) > first:
            scaled = f"{inputs[product]}/scaled"
            yield helper.make_node("ScaleRows", [inputs[product], *inputs[first:]], [scaled], domain=DOMAIN)
            inputs[product] = scaled
        inputs = inputs[:first]
        while not inputs[-1]:
            inputs.pop()
        if name == "RoundRows" or name.startswith("RoundedProduct"):
            name += kind
        made = helper.make_node(name, inputs, outputs, domain=DOMAIN, name=node.name)
        made.attribute.extend(attributes)
        yield made
        if rounds:
            yield helper.make_node(f"RoundRows{kind}", outputs[:1], node.output[:2], domain=DOMAIN)


def _with_split_experts(model: ir.Model) -> ir.Model:
    """Return the model with experts as in the standard graph, of which a function would need a form for each type."""
    for node in [each for each in model.graph if each.op_type.startswith(EXPERTS_OPERATOR)]:
        insert(node, EXPERTS_OPERATOR, node.inputs, node.outputs[:1], domain=TRACED_DOMAIN)
        model.graph.remove(node, safe=True)
    return with_expert_operators(model, "standard")


def _split_rotary(heads: int, kv_heads: int, size: int, rotated: int, has: Sequence[bool]) -> str:
    """Return the body for inputs of which `has` tells which there are."""
    names = ("query", "cos", "sin", "key", "value", "bias", "query_norm", "key_norm")
    given = {name for name, is_given in zip(names, has, strict=False) if is_given}
    parts = {"query": heads, "key": kv_heads, "value": kv_heads}
    sizes = [count * size for count in parts.values()]
    lines = [
        f"sizes = Constant <value_ints = {sizes}> ()",
        "first = Constant <value_ints = [0]> ()",
        "flat_cos = Unsqueeze (cos, first)",
        "flat_sin = Unsqueeze (sin, first)",
    ]
    if "key" not in given:
        lines.append("query_rows, key_rows, value_rows = Split <axis = -1> (query, sizes)")
    else:
        lines += [f"{part}_rows = Identity ({part})" for part in parts]
    if "bias" in given:
        lines.append("query_bias, key_bias, value_bias = Split <axis = -1> (bias, sizes)")
    for part, count in parts.items():
        norm = f"RMSNormalization <axis = -1, epsilon: float = @epsilon> ({part}_turned, {part}_norm)"
        rotary = f"RotaryEmbedding <rotary_embedding_dim = {rotated}> ({part}_normed, flat_cos, flat_sin)"
        lines += [
            f"{part}_biased = " + (f"Add ({part}_rows, {part}_bias)" if "bias" in given else f"Identity ({part}_rows)"),
            f"{part}_shape = Constant <value_ints = [1, -1, {count}, {size}]> ()",
            f"{part}_split = Reshape ({part}_biased, {part}_shape)",
            f"{part}_turned = Transpose <perm = [0, 2, 1, 3]> ({part}_split)",
            f"{part}_normed = " + (norm if f"{part}_norm" in given else f"Identity ({part}_turned)"),
            f"{part}_rotated = " + (f"Identity ({part}_normed)" if part == "value" else rotary),
            f"{part}_back = Transpose <perm = [0, 2, 1, 3]> ({part}_rotated)",
        ]
    lines += [
        "joined = Constant <value_ints = [0, 0, -1]> ()",
        "new_query = Reshape (query_back, joined)",
        "new_key = Squeeze (key_back, first)",
        "new_value = Squeeze (value_back, first)",
    ]
    inputs = ", ".join(names)
    signature = f"SplitRotary <heads, kv_heads, head_size, epsilon> ({inputs}) => (new_query, new_key, new_value)"
    return signature + " {\n" + "\n".join(lines) + "\n}"
