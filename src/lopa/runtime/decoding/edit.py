"""Stage 6 on a branch: unmasked tokens that a step replaces, and when a block needs no more edits (LLaDA2.1)."""

from collections.abc import Mapping

import numpy as np

from lopa.runtime.contract import Bool, Int64
from lopa.runtime.decoding.candidates import candidates_from_rows
from lopa.runtime.decoding.extension import Extension
from lopa.runtime.decoding.remask import with_finished_text
from lopa.runtime.decoding.round import EditedTokens, Proposals, RoundOutcome
from lopa.runtime.state.branch import Block, BlockState, Branch, BranchGrammar, final_length, with_tokens
from lopa.runtime.state.context import Context
from lopa.runtime.state.pipeline import first_masked, normalize_branch, positions_behind
from lopa.runtime.strategy import Candidates, EditView


def editing() -> Extension:
    """Return the extension that replaces unmasked tokens of open blocks."""
    return Extension(unmasked=_edited, answer=with_finished_text)


def _edited(outcome: RoundOutcome, proposals: Proposals, context: Context) -> RoundOutcome:
    scores, number = proposals.scores, proposals.number
    editable = scores.packed.editable[number]
    if proposals.step == scores.step or not context.params.temperature:
        candidates = scores.edit_candidates[number]
    else:
        rows = scores.rows[scores.packed.editable_columns(number)]
        candidates = candidates_from_rows(rows, editable, context, step=proposals.step)
    after, edited = edit_branch(proposals.branch, outcome.branch, editable, candidates, context)
    return outcome._replace(branch=normalize_branch(after, context) if len(edited) else after, edited=edited)


def edit_branch(
    before: Branch, after: Branch, editable: Int64, candidates: Candidates, context: Context
) -> tuple[Branch, EditedTokens]:
    """Return `after`, a branch that a step unmasked from `before`, once the step has edited it, and the edits.

    The `candidates` [n] belong to the positions `editable` [n], which were unmasked in `before`. A grammar keeps an
    edit only if it accepts the text up to the first masked position with it.
    """
    here = editable < len(after.tokens)
    editable, candidates = editable[here], candidates[here]
    chosen = _chosen(after, editable, candidates, context)
    if after.grammar is None:
        read = after
    else:
        allowed, read = _allowed_edits(after, after.grammar, editable[chosen], candidates.tokens[chosen], context)
        chosen[chosen] = allowed
    found = candidates[chosen]
    edited = EditedTokens(editable[chosen], after.tokens[editable[chosen]], found.tokens, found.probabilities)
    if len(edited):
        read = with_tokens(read, edited.positions, edited.tokens, found.logprobs, context)
    blocks = tuple(_edited_block(block, before, edited, context) for block in read.blocks)
    return read.changed(blocks=blocks), edited


def _chosen(branch: Branch, editable: Int64, candidates: Candidates, context: Context) -> Bool:
    """Return which of the positions `editable` [n] the strategy edits, [n], block by block."""
    chosen = np.zeros(len(editable), np.bool_)
    edit = context.strategy.edit
    if edit is None:
        return chosen
    for block in branch.active:
        own = slice(*np.searchsorted(editable, (block.start, block.end)))
        view = EditView(branch.tokens[editable[own]], candidates[own])
        chosen[own] = edit(view, context.params) & branch.unmasked[editable[own]]
    return chosen


def _edited_block(block: Block, before: Branch, edited: EditedTokens, context: Context) -> Block:
    """Return `block` after a step with the edits `edited`.

    The block needs no further step if nothing up to its end was masked before this one, and nothing there was edited.
    It needs none either if as many steps as the limit began with nothing masked there.
    """
    if block.state is not BlockState.ACTIVE:
        return block
    began_full = bool(before.unmasked[: block.end].all())
    rounds = block.edit_rounds + began_full
    changed = (edited.positions < block.end).any()
    is_settled = (began_full and not changed) or rounds >= context.params.editing_limit
    return block._replace(edit_rounds=rounds, is_unsettled=not is_settled)


# Edits under a grammar


def _allowed_edits(
    branch: Branch, grammar: BranchGrammar, positions: Int64, tokens: Int64, context: Context
) -> tuple[Bool, Branch]:
    """Return which edits of `positions` [n] to `tokens` [n] the grammar allows, [n], and `branch` read with them.

    Text before the first masked position has to stay valid; the edits are tried in turn. An edit behind it has to write
    text, like any provisional token. Ends of text are neither edited nor written.
    """
    start = _final_grammar(branch)
    behind = first_masked(branch, grammar)
    result = np.zeros(len(positions), np.bool_)
    kept: dict[int, int] = {}
    read = grammar
    for place, (position, token) in enumerate(zip(positions.tolist(), tokens.tolist(), strict=True)):
        if token in context.ends or int(branch.tokens[position]) in context.ends:
            continue
        if position >= behind:
            result[place] = not grammar.ended and bool(grammar.has_text[token])
            continue
        after = _read(branch, start, behind, {**kept, position: token})
        if after is not None:
            kept[position], read, result[place] = token, after, True
    if kept:
        read = read.with_rejected(grammar.remasked - read.remasked)
    return result, branch.changed(grammar=read, final_grammar=start)


def _final_grammar(branch: Branch) -> BranchGrammar:
    """Return the grammar's state behind the finished blocks of `branch`."""
    start = branch.final_grammar
    assert start is not None
    end = branch.layout.prompt + final_length(branch)
    return _read(branch, start, end, {}) or start


def _read(branch: Branch, start: BranchGrammar, end: int, edits: Mapping[int, int]) -> BranchGrammar | None:
    """Return the grammar's state behind the tokens of `branch` with `edits` before `end`, from the state `start` on.

    Return None if it does not accept them. An end of text ends the reading.
    """
    found: BranchGrammar | None = start
    for position in range(first_masked(branch, start), end):
        if found is None or found.ended:
            break
        token = edits.get(position, int(branch.tokens[position]))
        found = found.after(token, positions_behind(branch, position))
    return found
