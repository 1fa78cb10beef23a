"""The decoding loop of one request (docs/concepts/decoding.md, docs/reference/algorithm.md section 6).

`decoding.Decoding` is the loop, and the only one that knows a session. A round, in order:

1. `lopa.runtime.state.windows` makes a window of each branch, and `batch` one batch of the windows of all requests that
   share the forward.
2. The session computes the forward.
3. `round` scores the branches and finds the winner; the session commits the winner's rows.
4. `round` unmasks what the strategy chooses of the winner, and `remask` masks again what has become improbable.
5. `round` spawns the next branches: a lookahead token each, and the anchor without one. `branch_budget` says how many
   pay, where the plan leaves that open.

With `speculative`, `speculation` takes the place of 3 to 5. A grammar has its say in `constrained`.
"""
