"""LoPA's loop and its choices: pure functions of arrays, but for the loop itself (docs/decoding.md).

A round of one request, in order; `decoding.Decoding` is the loop, and the only one that knows a session:

1. `branches` (lopa.runtime.sequence) makes the hypotheses ready, `windows` a window of each, and `packing` one batch of
   the windows of all requests that share the forward.
2. The session computes the forward; `sound_rows` refuses an answer that cannot be decoded.
3. `candidates` makes of statistics one token for each position asked about, with its probability and confidence;
   `draws` where they are drawn.
4. `competition` says which branch wins; the session commits the winner's rows.
5. `filling` writes the winner's certain tokens, which `places` chooses, and cuts off what stands behind the end.
6. `branch_budget` says how many branches pay in the next round, where the config leaves that open.
7. `spawning` makes them of the winner: a lookahead token each, and the anchor without one.

With `lossless`, `lopa.runtime.ladder` has what stands in place of 4, 6 and 7.
"""
