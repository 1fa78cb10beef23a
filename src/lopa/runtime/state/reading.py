"""How the grammar of a branch reads its unmasked tokens (docs/how-to/structured-output.md)."""

from dataclasses import replace

import numpy as np

from lopa.runtime.state.branch import Branch, with_forced_tokens, with_remasked
from lopa.runtime.state.branch_grammar import BranchGrammar
from lopa.runtime.state.context import Context


def read_on(branch: Branch, grammar: BranchGrammar, context: Context) -> Branch:
    """Return `branch` with its grammar behind the tokens before the first masked position, as far as blocks are open.

    An unmasked token that cannot stand where it is reached is remasked. Tokens that must follow are written where
    nothing is unmasked, unless they leave too little room for the end.
    """
    tokens, unmasked = branch.tokens, branch.unmasked
    forced: dict[int, int] = {}
    position, end = first_masked(branch, grammar), branch.blocks[-1].end
    refused: list[int] = []
    waiting: tuple[int, ...] = ()
    while position < end and not grammar.ended:
        room = room_behind(branch, position)
        if unmasked[position] and position not in refused:
            after = grammar.after(int(tokens[position]), room)
            if after is None:
                refused.append(position)
                continue
            waiting = ()
        else:
            waiting = waiting or grammar.forced()
            after = grammar.after(waiting[0], room) if waiting else None
            if after is None:
                break
            forced[position], waiting = waiting[0], waiting[1:]
        grammar, position = after, position + 1
    if refused:
        branch = with_remasked(branch, np.array(refused), context)
        grammar = grammar.with_refused(len(refused))
    if forced:
        branch = with_forced_tokens(branch, forced, context)
    return replace(branch, grammar=grammar)


def first_masked(branch: Branch, grammar: BranchGrammar) -> int:
    """Return the position behind what `grammar` has read of the answer of `branch`."""
    return branch.layout.prompt + grammar.length


def room_behind(branch: Branch, position: int) -> int:
    """Return how many positions the answer has left behind `position`."""
    return branch.layout.end - position - 1
