"""LoPA's loop and its stages: pure functions of arrays, but for the loop itself (docs/decoding.md).

A round of one request, in order; `decoding.Decoding` is the loop, and the only one that knows a session:

1. `branches` makes the hypotheses ready: it opens blocks (`blocks`) and sets their flags.
2. `windows` makes one window of each; `packing` makes one batch of the windows of all requests that share the forward,
   and cuts the answer back.
3. The session computes the forward; `sound_rows` refuses an answer that cannot be decoded.
4. `candidates` makes of statistics one token for each undecided position, with its probability and confidence.
5. `competition` says which branch wins; the session commits the winner's rows.
6. `filling` writes the winner's certain tokens, and cuts off what stands behind the end.
7. `branch_budget` says how many branches pay in the next round, where the config leaves that open.
8. `spawning` makes them of the winner: a lookahead token each, and the anchor without one.
"""
