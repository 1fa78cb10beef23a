"""Advance the grammar of a branch over its unmasked tokens (docs/how-to/structured-output.md)."""

from dataclasses import replace

import numpy as np

from lopa.runtime.state.branch import Branch, with_forced_tokens, with_remasked
from lopa.runtime.state.branch_grammar import BranchGrammar
from lopa.runtime.state.context import Context


def advance_grammar(branch: Branch, grammar: BranchGrammar, context: Context) -> Branch:
    """Return `branch` with its grammar advanced to the first masked position, within open blocks.

    An unmasked token that is not possible at its position is remasked. Forced tokens are written at masked positions,
    unless the answer could then no longer end in time.
    """
    tokens, unmasked = branch.tokens, branch.unmasked
    forced: dict[int, int] = {}
    position, end = first_masked(branch, grammar), branch.blocks[-1].end
    rejected: list[int] = []
    pending: tuple[int, ...] = ()
    while position < end and not grammar.ended:
        remaining = positions_behind(branch, position)
        if unmasked[position] and position not in rejected:
            after = grammar.after(int(tokens[position]), remaining)
            if after is None:
                rejected.append(position)
                continue
            pending = ()
        else:
            pending = pending or grammar.forced()
            after = grammar.after(pending[0], remaining) if pending else None
            if after is None:
                break
            forced[position], pending = pending[0], pending[1:]
        grammar, position = after, position + 1
    if rejected:
        branch = with_remasked(branch, np.array(rejected), context)
    if forced:
        branch = with_forced_tokens(branch, forced, context)
    return replace(branch, grammar=grammar.with_rejected(len(rejected)))


def first_masked(branch: Branch, grammar: BranchGrammar) -> int:
    """Return the position behind the tokens that `grammar` has read of the answer of `branch`."""
    return branch.layout.prompt + grammar.length


def positions_behind(branch: Branch, position: int) -> int:
    """Return how many positions of the answer follow `position`."""
    return branch.layout.end - position - 1
