"""Operators of domain lopa.cuda as ONNX functions of standard operators, with which ONNX Runtime runs a twin on CPUs.

The bodies round where the standard graph rounds. Attention reads the dense masks and ignores the lists of tasks.
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
BranchAttention <heads, kv_heads, head_size>
(query, key, value, past_key, past_value, prefix_mask, window_mask, rows, tasks, merges, chunks) => (attended, scratch)
{
    one = Constant <value_ints = [1]> ()
    any = Constant <value_ints = [-1]> ()
    middle = Constant <value_ints = [1, 2]> ()
    windows = Shape <end = 3> (window_mask)
    prefix = Shape <start = 1> (prefix_mask)
    of_rows = Concat <axis = 0> (windows, prefix)
    of_request = Unsqueeze (prefix_mask, middle)
    expanded = Expand (of_request, of_rows)
    visible = Concat <axis = -1> (expanded, window_mask)
    seen = Shape <start = 2> (visible)
    mask_shape = Concat <axis = 0> (any, one, seen)
    mask = Reshape (visible, mask_shape)
    branches = Shape <start = 1, end = 2> (window_mask)
    copies = Concat <axis = 0> (one, branches, one, one, one)
    row = Shape <start = 1> (past_key)
    past_shape = Concat <axis = 0> (any, row)
    new_row = Shape <start = 2> (key)
    new_shape = Concat <axis = 0> (any, new_row)
    one_key = Unsqueeze (past_key, one)
    all_keys = Expand (one_key, copies)
    flat_keys = Reshape (all_keys, past_shape)
    new_keys = Reshape (key, new_shape)
    keys = Concat <axis = 2> (flat_keys, new_keys)
    one_value = Unsqueeze (past_value, one)
    all_values = Expand (one_value, copies)
    flat_values = Reshape (all_values, past_shape)
    new_values = Reshape (value, new_shape)
    values = Concat <axis = 2> (flat_values, new_values)
    split = Constant <value_ints = [0, 0, HEADS, SIZE]> ()
    of_heads = Reshape (query, split)
    turned = Transpose <perm = [0, 2, 1, 3]> (of_heads)
    result = Attention (turned, keys, values, mask)
    back = Transpose <perm = [0, 2, 1, 3]> (result)
    joined = Constant <value_ints = [0, 0, -1]> ()
    attended = Reshape (back, joined)
    scratch = Constant <value_floats = [0.0]> ()
}"""
_TOKEN_STATISTICS = """
TokenStatistics <candidates> (logits, temperature) => (topk_ids, topk_logprobs, entropy, scratch) {
    wide = Cast <to = 1> (logits)
    of_request = Constant <value_ints = [-1, 1, 1, 1]> ()
    divisor = Reshape (temperature, of_request)
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
    bodies.append(_BRANCH_ATTENTION.replace("HEADS", str(heads)).replace("SIZE", str(size)))
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
    names = ("query", "window_mask", "cos", "sin", "key", "value", "bias", "query_norm", "key_norm")
    given = {name for name, is_given in zip(names, has, strict=False) if is_given}
    parts = {"query": heads, "key": kv_heads, "value": kv_heads}
    sizes = [count * size for count in parts.values()]
    lines = [
        f"sizes = Constant <value_ints = {sizes}> ()",
        "any = Constant <value_ints = [-1]> ()",
        "width = Shape <start = 3> (window_mask)",
        "windows = Shape <end = 2> (window_mask)",
        "half = Shape <start = -1> (cos)",
        "angle_shape = Concat <axis = 0> (any, width, half)",
        "flat_cos = Reshape (cos, angle_shape)",
        "flat_sin = Reshape (sin, angle_shape)",
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
            f"{part}_heads = Constant <value_ints = [{count}, {size}]> ()",
            f"{part}_shape = Concat <axis = 0> (any, width, {part}_heads)",
            f"{part}_split = Reshape ({part}_biased, {part}_shape)",
            f"{part}_turned = Transpose <perm = [0, 2, 1, 3]> ({part}_split)",
            f"{part}_normed = " + (norm if f"{part}_norm" in given else f"Identity ({part}_turned)"),
            f"{part}_rotated = " + (f"Identity ({part}_normed)" if part == "value" else rotary),
        ]
    lines += [
        "cache_shape = Concat <axis = 0> (windows, key_head, width, key_size)",
        "new_key = Reshape (key_rotated, cache_shape)",
        "new_value = Reshape (value_rotated, cache_shape)",
        "rotated = Transpose <perm = [0, 2, 1, 3]> (query_rotated)",
        "joined = Constant <value_ints = [0, 0, -1]> ()",
        "new_query = Reshape (rotated, joined)",
    ]
    constants = (("key_head", kv_heads), ("key_size", size))
    lines[:0] = [f"{name} = Constant <value_ints = [{value}]> ()" for name, value in constants]
    inputs = ", ".join(names)
    signature = f"SplitRotary <heads, kv_heads, head_size, epsilon> ({inputs}) => (new_query, new_key, new_value)"
    return signature + " {\n" + "\n".join(lines) + "\n}"
