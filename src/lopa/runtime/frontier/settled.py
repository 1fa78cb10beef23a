"""A branch whose decided tokens its grammar has read as far as they go without a gap: the frontier stands behind them.

What is refused on the way is taken back; what must follow is written without a forward. Pure.
"""

import math
from dataclasses import replace

import numpy as np

from lopa.runtime.grammar.state import GrammarState
from lopa.runtime.sequence.blocks import with_counted_masks
from lopa.runtime.sequence.branches import Branch, has_end, taken_back, with_logprobs


def room_behind(branch: Branch, position: int) -> int:
    """Positions that the answer has left behind `position`."""
    return branch.layout.end - position - 1


def frontier(branch: Branch, state: GrammarState) -> int:
    """The position behind what `state` has read of a branch's answer."""
    return branch.layout.prompt + state.length


def settled(branch: Branch, *, mask_token: int, ends: tuple[int, ...]) -> Branch:
    """`branch` with its grammar's state at its frontier, as far as blocks are open.

    A decided token that cannot stand where the frontier reaches it is undecided again. Tokens that must follow are
    written where nothing is decided; none that would leave too little room for the end.
    """
    state = branch.grammar
    if state is None or state.ended:
        return branch
    tokens, decided = branch.tokens, branch.decided
    forced: dict[int, int] = {}
    position, end = frontier(branch, state), branch.blocks[-1].end
    refused: list[int] = []
    waiting: tuple[int, ...] = ()
    while position < end and not state.ended:
        room = room_behind(branch, position)
        if decided[position] and position not in refused:
            after = state.after(int(tokens[position]), room)
            if after is None:
                refused.append(position)
                continue
            waiting = ()
        else:
            waiting = waiting or state.forced()
            after = state.after(waiting[0], room) if waiting else None
            if after is None:
                break
            forced[position], waiting = waiting[0], waiting[1:]
        state, position = after, position + 1
    if refused:
        branch = taken_back(branch, np.array(refused), mask_token=mask_token, ends=ends)
        state = replace(state, taken_back=state.taken_back + len(refused))
    if forced:
        branch = _written(branch, forced, ends)
    return replace(branch, grammar=state)


def _written(branch: Branch, written: dict[int, int], ends: tuple[int, ...]) -> Branch:
    """`branch` with tokens that no forward was asked about, by position."""
    tokens, decided = branch.tokens.copy(), branch.decided.copy()
    positions = np.array(list(written))
    tokens[positions], decided[positions] = list(written.values()), True
    return replace(
        branch,
        tokens=tokens,
        decided=decided,
        blocks=with_counted_masks(branch.blocks, decided),
        ended=has_end(tokens, decided, branch.layout, ends),
        logprobs=with_logprobs(branch.logprobs, positions, math.nan),
    )
