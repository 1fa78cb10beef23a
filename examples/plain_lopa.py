"""LoPA in one file: the algorithm of arXiv 2512.16229 on D2F's blocks (arXiv 2508.09192), without a cache.

Read it from the bottom: `lopa` is the loop, and `one_round` one round of it. Section numbers are those of
docs/reference/algorithm.md. D2F is the same without lookahead branches. lopa.runtime adds caches, batches and devices.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Statistics(NamedTuple):
    """Statistics of the model's distribution at every row, [rows] each."""

    token: Ints  # the most probable one
    probability: Floats  # its probability
    runner_up: Floats  # the probability of the second one
    entropy: Floats  # in nats


Forward = Callable[[Ints, Ints, NDArray[np.bool_]], Statistics]
"""Function from tokens [rows], positions [rows] and an attention mask [rows, rows] to statistics."""


@dataclass(frozen=True)
class Options:
    """Decoding options and the model's special tokens."""

    mask_token: int
    end_token: int
    lookaheads: int = 4  # branches in addition to the anchor
    max_new_tokens: int = 256
    block_size: int = 32
    block_add_threshold: float = 0.1  # share of unmasked positions in the last block at which the next block opens
    decoded_token_threshold: float = 0.95  # share in a block at which the next block always unmasks a token
    skip_threshold: float = 0.9  # probability above which a token is unmasked
    confidence: Literal["probability", "margin", "neg_entropy"] = "neg_entropy"
    full_attention: bool = True  # attend to the whole window, or only to own and earlier blocks
    prediction_shift: int = 1  # 1 if a row predicts the next position (Dream), 0 if its own


@dataclass(frozen=True)
class Block:
    """A run of positions that is decoded together. The prompt is a block too (section 1)."""

    start: int
    end: int
    masks: int  # number of masked positions
    state: Literal["active", "to_cache", "in_cache"] = "active"
    fully_activated: bool = False  # the previous block is (nearly) unmasked, so this one always unmasks a token

    @property
    def progress(self) -> float:
        """Share of positions that are unmasked."""
        return 1 - self.masks / (self.end - self.start)


@dataclass(frozen=True)
class Branch:
    """One hypothesis of the sequence."""

    tokens: Ints  # the prompt and all open blocks
    blocks: tuple[Block, ...]  # the first block is the prompt
    ended: bool = False  # an end of text was unmasked, so no more blocks open
    lookahead: tuple[int, int] | None = None  # position and token that differ from the anchor


class Candidates(NamedTuple):
    """The model's proposals for every masked position, [masked] each."""

    positions: Ints
    tokens: Ints
    probabilities: Floats
    confidences: Floats


class Round(NamedTuple):
    """Record of one round."""

    branches: tuple[Branch, ...]  # lookaheads, best first, and the anchor
    confidences: tuple[float, ...]  # confidence of each branch
    winner: int
    unmasked: dict[int, int]  # position -> token
    next_branches: tuple[Branch, ...]


def begin(branch: Branch, options: Options) -> Branch:
    """Open the next block if it is due, and flag blocks whose predecessor is (nearly) unmasked (section 4)."""
    blocks, tokens, last = list(branch.blocks), branch.tokens, branch.blocks[-1]
    size, room = options.block_size, options.max_new_tokens // options.block_size
    if len(blocks) - 1 < room and not branch.ended and last.progress >= options.block_add_threshold:
        blocks.append(Block(last.end, last.end + size, size))
        tokens = np.concatenate([tokens, np.full(size, options.mask_token)])
    for number in range(1, len(blocks)):
        if blocks[number - 1].progress >= options.decoded_token_threshold:
            blocks[number] = replace(blocks[number], fully_activated=True)
    return replace(branch, tokens=tokens, blocks=tuple(blocks))


def window(branch: Branch) -> tuple[int, int]:
    """Return the start of a forward's rows, and how many of them become context after it (section 2)."""
    start = next(block.start for block in branch.blocks if block.state != "in_cache")
    return start, sum(block.end - block.start for block in branch.blocks if block.state == "to_cache")


def propose(forward: Forward, past: tuple[Branch, ...], branch: Branch, options: Options) -> Candidates:
    """Run the model on a branch. Its context is computed again, in the windows of the `past` winners."""
    runs = (*past, branch)
    starts, dues = zip(*map(window, runs), strict=True)
    tokens = np.concatenate([each.tokens[start:] for each, start in zip(runs, starts, strict=True)])
    positions = np.concatenate([np.arange(start, len(each.tokens)) for each, start in zip(runs, starts, strict=True)])
    first = np.cumsum([0, *(len(each.tokens) - start for each, start in zip(runs, starts, strict=True))])
    mask = np.zeros((len(tokens), len(tokens)), np.bool_)
    for number, each in enumerate(runs):
        rows = slice(first[number], first[number + 1])
        block = np.searchsorted([block.end for block in each.blocks], positions[rows], side="right")
        mask[rows, rows] = options.full_attention | (block[:, None] >= block[None, :])
        for earlier in range(number):
            mask[rows, first[earlier] : first[earlier] + dues[earlier]] = True
    found = forward(tokens, positions, mask)

    masked = np.flatnonzero(branch.tokens == options.mask_token)
    rows = first[-2] + masked - options.prediction_shift - starts[-1]
    if past:  # the row before the window is the last row of the context
        rows = np.where(rows < first[-2], first[-3] + dues[-2] - 1, rows)
    margins = found.probability - found.runner_up
    kinds = {"probability": found.probability, "margin": margins, "neg_entropy": -found.entropy}
    return Candidates(masked, found.token[rows], found.probability[rows], kinds[options.confidence][rows])


def choose(branch: Branch, candidates: Candidates, options: Options) -> dict[int, int]:
    """Return the tokens that each active block unmasks: those above the threshold, or the best one (section 5)."""
    chosen: dict[int, int] = {}
    for block in branch.blocks:
        own = (candidates.positions >= block.start) & (candidates.positions < block.end)
        sure = own & (candidates.probabilities > options.skip_threshold)
        if block.fully_activated and own.any() and not sure.any():
            sure[np.argmax(np.where(own, candidates.confidences, -np.inf))] = True
        chosen |= dict(zip(candidates.positions[sure].tolist(), candidates.tokens[sure].tolist(), strict=True))
    return chosen


def write(branch: Branch, chosen: dict[int, int], options: Options) -> Branch:
    """Unmask tokens and count the remaining masks."""
    tokens = branch.tokens.copy()
    for position, token in chosen.items():
        tokens[position] = token
    masks = tokens == options.mask_token
    blocks = tuple(replace(each, masks=int(masks[each.start : each.end].sum())) for each in branch.blocks)
    return replace(branch, tokens=tokens, blocks=blocks, ended=branch.ended or options.end_token in chosen.values())


def settle(branch: Branch, may_finish: set[int]) -> Branch:
    """Update the states of blocks. Due blocks join the context, and unmasked blocks become due (section 6, K)."""
    blocks: list[Block] = []
    for block in branch.blocks:
        if block.state != "active":
            block = replace(block, state="in_cache")
        elif block.start in may_finish and not block.masks and blocks[-1].state != "active":
            block = replace(block, state="to_cache")
        blocks.append(block)
    return replace(branch, blocks=tuple(blocks))


def one_round(forward: Forward, past: tuple[Branch, ...], branches: tuple[Branch, ...], options: Options) -> Round:
    """Verify all branches, continue with the most confident one, and branch again (section 6, B to K)."""
    proposed = [propose(forward, past, branch, options) for branch in branches]
    confidences = tuple(float(each.confidences.mean()) if len(each.positions) else 1.0 for each in proposed)
    winner = int(np.argmax(confidences))
    chosen = choose(branches[winner], proposed[winner], options)
    anchor = replace(write(branches[winner], chosen, options), lookahead=None)
    may_finish = {block.start for block in anchor.blocks if not block.masks}

    positions, tokens, _, confidence = proposed[winner]
    ranking = np.argsort(-confidence, kind="stable")
    left = [i for i in ranking if anchor.tokens[positions[i]] == options.mask_token and positions[i] not in chosen]
    pairs = [(int(positions[i]), int(tokens[i])) for i in left[: options.lookaheads]]
    looking = [replace(write(anchor, dict([pair]), options), lookahead=pair) for pair in pairs]
    following = tuple(settle(branch, may_finish) for branch in (*looking, anchor))
    return Round(branches, confidences, winner, chosen, following)


def lopa(forward: Forward, prompt: Ints, options: Options) -> Iterator[Round]:
    """Decode a prompt round by round until nothing is masked. The last round's anchor contains the answer."""
    past: tuple[Branch, ...] = ()
    branches: tuple[Branch, ...] = (Branch(prompt, (Block(0, len(prompt), 0, "to_cache", fully_activated=True),)),)
    while True:
        branches = tuple(begin(branch, options) for branch in branches)
        if all(block.state != "active" for branch in branches for block in branch.blocks):
            return
        decoded = one_round(forward, past, branches, options)
        yield decoded
        won = branches[decoded.winner]
        past, branches = (*past, won) if window(won)[1] else past, decoded.next_branches
