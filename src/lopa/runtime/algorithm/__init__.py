"""LoPA's loop and its choices: pure functions of arrays, but for the loop itself (docs/decoding.md).

A round of one request, in order; `decoding.Decoding` is the loop, and the only one that knows a session:

1. `branches` (lopa.runtime.sequence) makes the hypotheses ready, `windows` a window of each, and `packing` one batch of
   the windows of all requests that share the forward.
2. The session computes the forward; `sound_rows` refuses an answer that cannot be decoded.
3. `contest` finds the winner: `candidates` makes of statistics one token for each position asked about, with its
   probability and confidence, `draws` where they are drawn, and `competition` says which branch is surest of them. The
   session commits the winner's rows.
4. `deciding` says what that branch decides: what a grammar lets stand, what the strategy's rule takes of it; `filling`
   writes it and cuts off what stands behind the end.
5. `branch_budget` says how many branches pay in the next round, where the config leaves that open.
6. `spawning` makes them of the winner: a lookahead token each, and the anchor without one.

With `lossless`, `lopa.runtime.ladder` has what stands in place of 3, 5 and 6. A `step` tells what a round was.
"""
