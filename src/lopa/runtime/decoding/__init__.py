"""The decoding loop of one request (docs/concepts/decoding.md, docs/reference/algorithm.md section 6).

`lopa_loop.LopaLoop` is the loop. It knows no session: it returns the rows of a round and takes their statistics.

1. `lopa.runtime.state.packed_rows` lists the rows of all branches. The session computes them.
2. `round` scores the branches and finds the winner.
3. `round` unmasks the tokens that the strategy chooses.
4. `round` makes the next branches: the anchor, and branches with one lookahead token each.

Everything else is an extension, which the loop asks at five points:

- **start**, the first branches: `extension` (cached prompts, grammars), `hole_filling`, `growing_holes`, `reference`.
- **rows**, statistics before scores: `hole_filling` (token healing), `growing_holes` (expand tokens).
- **candidates**, another way to score and continue: `speculation`, `branch_budget`.
- **unmasked**, the outcome of a step: `edit`, `remask`, `growing_holes`.
- **answer**, text and its end: `hole_filling`, `growing_holes`, `edit`, `remask`, `reference`, `candidate_record`.

A grammar is a part of its branch, since a step asks it between choosing and unmasking: see `constrained`. Shadow rows
for remasking are rows of the round. Both are lines in the loop.
"""
