"""ONNX functions of domain `lopa`: operators with kernels in lopa.plugins, whose bodies are standard operators.

A backend with a plugin of the function's name uses the plugin. Any other backend runs the body. The token statistics
have two inner functions, because their plugin has two kernels: one per split of the vocabulary, and one per row. The
body has one split.
"""

import onnx_ir as ir
from onnx import parser

DOMAIN = "lopa"
BRANCH_ATTENTION = "BranchAttention"
TOKEN_STATISTICS = "TokenStatistics"

# query [R * B, Hq, W, D]; key, value [R * B, Hkv, W, D]; past_key, past_value [R, Hkv, P, D]; window_mask bool
# [R, B, W, W]; prefix_mask bool [R, P] -> [R * B, Hq, W, D]
_BRANCH_ATTENTION = """
<opset_import: ["" : 23], domain: "lopa">
BranchAttention <plugin_namespace>
(query, key, value, past_key, past_value, window_mask, prefix_mask) => (attended)
{
    one = Constant <value_ints = [1]> ()
    any = Constant <value_ints = [-1]> ()
    windows = Shape <start = 0, end = 3> (window_mask)
    prefix = Shape <start = 1, end = 2> (prefix_mask)
    for_all_rows = Concat <axis = 0> (windows, prefix)
    middle = Constant <value_ints = [1, 2]> ()
    of_request = Unsqueeze (prefix_mask, middle)
    of_rows = Expand (of_request, for_all_rows)
    of_branches = Concat <axis = -1> (of_rows, window_mask)
    seen = Shape <start = 2, end = 4> (of_branches)
    mask_shape = Concat <axis = 0> (any, one, seen)
    mask = Reshape (of_branches, mask_shape)
    branches = Shape <start = 1, end = 2> (window_mask)
    for_branches = Concat <axis = 0> (one, branches, one, one, one)
    rows = Shape <start = 1, end = 4> (past_key)
    past_shape = Concat <axis = 0> (any, rows)
    one_key = Unsqueeze (past_key, one)
    every_key = Expand (one_key, for_branches)
    committed_keys = Reshape (every_key, past_shape)
    keys = Concat <axis = 2> (committed_keys, key)
    one_value = Unsqueeze (past_value, one)
    every_value = Expand (one_value, for_branches)
    committed_values = Reshape (every_value, past_shape)
    values = Concat <axis = 2> (committed_values, value)
    attended = Attention (query, keys, values, mask)
}
"""

# hidden [R, B, Q, H], weight [H, V], temperature float32 [R] -> statistics of the contract
_TOKEN_STATISTICS = """
<opset_import: ["" : 23, "lopa" : 1], domain: "lopa">
TokenStatistics (hidden, weight, temperature) => (topk_ids, topk_logprobs, entropy)
{
    greatest, total, weighted, logits, numbers =
        lopa.StatisticsPartials <plugin_namespace = "lopa"> (hidden, weight, temperature)
    ids, topk_logprobs, entropy =
        lopa.StatisticsMerge <plugin_namespace = "lopa"> (greatest, total, weighted, logits, numbers)
    topk_ids = Cast <to = 7> (ids)
}
"""

# For S splits of the vocabulary: float32 [R, B, Q, S] (largest logit, sum of exp(z - largest), sum of exp(z - largest)
# * (z - largest)), and the candidates of every split, [R, B, Q, S, K], float32 and int32
_STATISTICS_PARTIALS = """
<opset_import: ["" : 23], domain: "lopa">
StatisticsPartials <plugin_namespace>
(hidden, weight, temperature) => (greatest, total, weighted, logits, numbers)
{
    product = MatMul (hidden, weight)
    wide = Cast <to = 1> (product)
    of_request = Constant <value_ints = [-1, 1, 1, 1]> ()
    divisor = Reshape (temperature, of_request)
    z = Div (wide, divisor)
    candidates = Constant <value_ints = [8]> ()
    best, places = TopK (z, candidates)
    zero = Constant <value_ints = [0]> ()
    one = Constant <value_ints = [1]> ()
    last = Constant <value_ints = [-1]> ()
    greatest = Slice (best, zero, one, last, one)
    above = Sub (z, greatest)
    weights = Exp (above)
    total = ReduceSum <keepdims = 1> (weights, last)
    products = Mul (weights, above)
    weighted = ReduceSum <keepdims = 1> (products, last)
    split = Constant <value_ints = [3]> ()
    logits = Unsqueeze (best, split)
    short = Cast <to = 6> (places)
    numbers = Unsqueeze (short, split)
}
"""

# -> ids int32 [R, B, Q, K], log-probabilities float32 [R, B, Q, K], entropy float32 [R, B, Q]
_STATISTICS_MERGE = """
<opset_import: ["" : 23], domain: "lopa">
StatisticsMerge <plugin_namespace>
(greatest, total, weighted, logits, numbers) => (ids, logprobs, entropy)
{
    last = Constant <value_ints = [-1]> ()
    top = ReduceMax <keepdims = 1> (greatest, last)
    down = Sub (greatest, top)
    scale = Exp (down)
    totals = Mul (total, scale)
    whole = ReduceSum <keepdims = 1> (totals, last)
    moved = Mul (total, down)
    relative = Add (weighted, moved)
    scaled = Mul (relative, scale)
    mean = ReduceSum <keepdims = 1> (scaled, last)
    of_row = Constant <value_ints = [0, 0, 0, -1]> ()
    all_logits = Reshape (logits, of_row)
    all_numbers = Reshape (numbers, of_row)
    candidates = Constant <value_ints = [8]> ()
    best, places = TopK (all_logits, candidates)
    ids = GatherElements <axis = -1> (all_numbers, places)
    log_whole = Log (whole)
    above = Sub (best, top)
    logprobs = Sub (above, log_whole)
    surprise = Div (mean, whole)
    every = Sub (log_whole, surprise)
    entropy = Squeeze (every, last)
}
"""

_TEXTS = {
    BRANCH_ATTENTION: (_BRANCH_ATTENTION,),
    TOKEN_STATISTICS: (_TOKEN_STATISTICS, _STATISTICS_PARTIALS, _STATISTICS_MERGE),
}


def functions_of_plugin(name: str) -> list[ir.Function]:
    """Return the function BRANCH_ATTENTION or TOKEN_STATISTICS and the functions that it calls."""
    return [ir.serde.deserialize_function(parser.parse_function(text)) for text in _TEXTS[name]]
