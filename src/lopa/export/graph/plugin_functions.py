"""ONNX functions of domain `lopa`: operators with kernels in lopa.plugins, whose bodies are standard operators.

A backend with a plugin of the function's name uses the plugin. Any other backend runs the body. The token statistics
have two inner functions, because their plugin has two kernels: one per split of the vocabulary, and one per row. The
body has one split. Earlier versions wrote functions of other names, which have no plugins now and run by their bodies.
"""

import onnx_ir as ir
from onnx import parser

DOMAIN = "lopa"
TOKEN_STATISTICS = "TokenStatistics"

# logits [R, B, Q, V], temperature float32 [R] -> statistics of the contract
_TOKEN_STATISTICS = """
<opset_import: ["" : 23, "lopa" : 1], domain: "lopa">
TokenStatistics (logits, temperature) => (topk_ids, topk_logprobs, entropy)
{
    greatest, total, weighted, ids, values =
        lopa.LogitsPartials <plugin_namespace = "lopa"> (logits, temperature)
    topk_ids, topk_logprobs, entropy =
        lopa.LogitsMerge <plugin_namespace = "lopa"> (greatest, total, weighted, ids, values)
}
"""

# For S splits of the vocabulary: float32 [R, B, Q, S] (largest logit, sum of exp(z - largest), sum of exp(z - largest)
# * (z - largest)), and the candidates of every split, [R, B, Q, S, K], int32 ids and float32 z
_STATISTICS_PARTIALS = """
<opset_import: ["" : 23], domain: "lopa">
LogitsPartials <plugin_namespace>
(logits, temperature) => (greatest, total, weighted, ids, values)
{
    wide = Cast <to = 1> (logits)
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
    values = Unsqueeze (best, split)
    short = Cast <to = 6> (places)
    ids = Unsqueeze (short, split)
}
"""

# -> ids int64 [R, B, Q, K], log-probabilities float32 [R, B, Q, K], entropy float32 [R, B, Q]
_STATISTICS_MERGE = """
<opset_import: ["" : 23], domain: "lopa">
LogitsMerge <plugin_namespace>
(greatest, total, weighted, ids, values) => (topk_ids, topk_logprobs, entropy)
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
    all_values = Reshape (values, of_row)
    all_ids = Reshape (ids, of_row)
    candidates = Constant <value_ints = [8]> ()
    best, places = TopK (all_values, candidates)
    short_ids = GatherElements <axis = -1> (all_ids, places)
    topk_ids = Cast <to = 7> (short_ids)
    log_whole = Log (whole)
    above = Sub (best, top)
    topk_logprobs = Sub (above, log_whole)
    surprise = Div (mean, whole)
    every = Sub (log_whole, surprise)
    entropy = Squeeze (every, last)
}
"""


def plugin_functions() -> list[ir.Function]:
    """Return the function TOKEN_STATISTICS and the functions that it calls."""
    texts = (_TOKEN_STATISTICS, _STATISTICS_PARTIALS, _STATISTICS_MERGE)
    return [ir.serde.deserialize_function(parser.parse_function(text)) for text in texts]
