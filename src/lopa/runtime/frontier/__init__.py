"""Where the decided tokens of a branch meet its grammar: the frontier, which is its first undecided position.

In front of it every token was read and is right; behind it tokens are provisional. `rows` says which candidates may
stand at the frontier, `run` how far a round may go on from it, `settled` what becomes of the tokens behind it when it
moves (docs/grammars.md). Pure.
"""
