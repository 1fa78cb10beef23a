"""Operators of domain lopa.cuda as ONNX functions of standard operators, with which ONNX Runtime runs a twin on CPUs.

The bodies round where the standard graph rounds. Attention takes a dense mask in place of the lists of tasks: which of
the cache's rows, then which packed rows, each row sees. Chunks of the cache follow each other.
"""

from collections.abc import Sequence
from pathlib import Path

import onnx
from onnx import parser

DOMAIN = "lopa.cuda"

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
    model = onnx.load(twin, load_external_data=False)
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
    header = f'<opset_import: ["" : 23], domain: "{DOMAIN}">'
    model.functions.extend(parser.parse_function(header + body) for body in bodies)
    return model


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
