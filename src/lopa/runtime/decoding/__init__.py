"""The decoding loop of one request (docs/concepts/decoding.md, docs/reference/algorithm.md section 6).

`decoding.Decoding` is the loop, and the only module here that uses a session. A round runs in this order:

1. `lopa.runtime.state.packed_rows` lists the rows of all branches. `batch` joins the rows of all requests in the
forward.
2. The session computes the forward.
3. `round` scores the branches and finds the winner. The session commits the winner's rows.
4. `round` unmasks the tokens that the strategy chooses, `remask` masks improbable ones again, and `edit` replaces
tokens.
5. `round` makes the next branches: the anchor, and branches with one lookahead token each. With branches="auto",
`branch_budget` chooses their number.

With `speculative`, `speculation` replaces steps 3 to 5. `constrained` applies a grammar.
"""
