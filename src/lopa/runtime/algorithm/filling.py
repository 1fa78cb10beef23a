"""Filling the winner's undecided positions (docs/lopa.md, section 5 and 6 H), and cutting off needless ones. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lopa.runtime.contract import Bool, Float32, Int64
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.sequence.blocks import active
from lopa.runtime.sequence.branches import Branch, has_end, is_end, with_logprobs
from lopa.runtime.sequence.opened import open_span
from lopa.runtime.strategy.candidates import Candidates
from lopa.runtime.strategy.open_block import OpenBlock
from lopa.runtime.strategy.places import chosen_places
from lopa.runtime.strategy.settings import rule_from_config


@dataclass(frozen=True)
class Fills:
    """What a round filled: step by step of the rule, and of each block by block in the order of positions."""

    chosen: Bool
    """[positions that were asked about]"""
    positions: Int64
    tokens: Int64
    logprobs: Float32 | None = None
    probabilities: Float32 | None = None
    """Statistics of the tokens as the rule saw them; None where the fills have no candidates, as in tests."""
    entropies: Float32 | None = None
    """In nats, of the rows that they come from."""

    def __len__(self) -> int:
        return len(self.positions)


def joined(steps: Sequence[Fills]) -> Fills:
    """The fills of several steps, at least one, as those of a round; `chosen` is the last step's."""
    if len(steps) == 1:
        return steps[0]
    return Fills(
        steps[-1].chosen,
        np.concatenate([each.positions for each in steps]),
        np.concatenate([each.tokens for each in steps]),
        _joined([each.logprobs for each in steps]),
        _joined([each.probabilities for each in steps]),
        _joined([each.entropies for each in steps]),
    )


def _joined(parts: Sequence[Float32 | None]) -> Float32 | None:
    """All parts as one array, or None where one is None."""
    given = [part for part in parts if part is not None]
    return np.concatenate(given) if len(given) == len(parts) else None


def fills_from_candidates(branch: Branch, asked: Int64, candidates: Candidates, config: GenerationConfig) -> Fills:
    """Per active block, of what is open in it: what the strategy's rule chooses.

    `asked` [n], positions ascending, and `candidates` [n] are a round's.
    """
    return fills_of_chosen(asked, candidates, chosen_of_candidates(branch, asked, candidates, config=config))


def fills_of_chosen(asked: Int64, candidates: Candidates, chosen: Bool) -> Fills:
    """Those of the `asked` positions [n] with their `candidates` [n] that were `chosen` [n]."""
    taken = candidates[chosen]
    return Fills(chosen, asked[chosen], taken.tokens, taken.logprobs, taken.probabilities, taken.entropies)


def chosen_of_candidates(
    branch: Branch, asked: Int64, candidates: Candidates, may: Bool | None = None, *, config: GenerationConfig
) -> Bool:
    """[n]: which of the `asked` positions [n] the strategy's rule decides; of those that `may` [n], None: of all."""
    rule = rule_from_config(config)
    chosen = np.zeros(len(asked), np.bool_)
    for block in active(branch.blocks):
        own = slice(*np.searchsorted(asked, open_span(branch, block, config)))
        positions = asked[own]
        undecided = ~branch.decided[positions]
        offered = OpenBlock(
            positions,
            candidates[own],
            undecided if may is None else undecided & may[own],
            block.complete,
            block.rounds,
            branch.memory,
            leads=bool(branch.decided[: block.start].all()),
        )
        chosen[own] = chosen_places(offered, rule, config)
    return chosen


def handed_over(
    branch: Branch, candidate: Candidates, *, mask_token: int, ends: tuple[int, ...]
) -> tuple[Branch, Fills]:
    """`branch` with the first token of the block to come, the `candidate` [1] of a committed block's last row.

    Greedy or drawn like any other, but without a threshold (Fast-dLLM v2's rule).
    """
    position = branch.blocks[-1].end
    fills = Fills(
        np.zeros(0, np.bool_),
        np.array([position]),
        candidate.tokens,
        candidate.logprobs,
        candidate.probabilities,
        candidate.entropies,
    )
    logprobs = branch.logprobs
    longer = replace(
        branch,
        tokens=np.append(branch.tokens, mask_token),
        decided=np.append(branch.decided, False),
        logprobs=None if logprobs is None else np.append(logprobs, np.float32(np.nan)),
    )
    return filled(longer, fills, mask_token=mask_token, ends=ends), fills


def filled(branch: Branch, fills: Fills, *, mask_token: int, ends: tuple[int, ...]) -> Branch:
    """`branch` with the fills written. A position "filled" with the mask token stays undecided (quirk 3).

    It has ended where an end stands in the answer: the rule that overwrites decided tokens may write one into the
    prompt, or write over one.
    """
    tokens, decided = branch.tokens.copy(), branch.decided.copy()
    tokens[fills.positions] = fills.tokens
    decided[fills.positions] = fills.tokens != mask_token
    return replace(
        branch,
        tokens=tokens,
        decided=decided,
        ended=has_end(tokens, decided, branch.layout, ends),
        logprobs=with_logprobs(branch.logprobs, fills.positions, fills.logprobs),
    )


def positions_written(branch: Branch, fills: Fills) -> Int64:
    """What a round decided in `branch`, its winner: its `fills` and the lookahead token that it verified."""
    return fills.positions if branch.lookahead is None else np.append(fills.positions, branch.lookahead.position)


def without_rows_after_end(branch: Branch, ends: tuple[int, ...]) -> Branch:
    """`branch` up to its first decided end-of-text: whatever stands before it, the answer ends there at the latest.

    The last block becomes shorter, later ones go. What is left no longer sees the rows that went, so confidences
    change a little (docs/decoding.md has the measured effect on score and speed).
    """
    prompt_length = branch.layout.prompt
    found = is_end(branch.tokens[prompt_length:], ends) & branch.decided[prompt_length:]
    if not found.any():
        return branch
    end = prompt_length + int(np.argmax(found)) + 1
    return replace(
        branch,
        tokens=branch.tokens[:end],
        decided=branch.decided[:end],
        logprobs=None if branch.logprobs is None else branch.logprobs[:end],
        blocks=tuple(replace(block, end=min(block.end, end)) for block in branch.blocks if block.start < end),
        memory=None if branch.memory is None else branch.memory.before(end),
    )
