"""Predictions of a model in a round, by the definition of each cache, without the runtime's windows.

Exact caches need no definition beyond the sequence: one pass over all of it, without cached rows. The others are
approximations, defined by the keys and values that a round computes and the earlier rounds of the others
(docs/concepts/decoding.md, "Caches").
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tests.conformance.plain.plain_network import Array, KeyValues, PlainNetwork, joined, rows_of


@dataclass(frozen=True)
class Setting:
    """The properties of a decode that affect the model's statistics."""

    cache: str
    window: str
    alignment: str
    shift: int
    prompt: int
    block: int
    sub_block: int | None = None

    def number(self, positions: Array) -> Array:
        """Return the block number of each position."""
        if self.alignment == "absolute":
            return positions // self.block
        return np.where(positions < self.prompt, 0, 1 + (positions - self.prompt) // self.block)

    def block_around(self, position: int, length: int) -> tuple[int, int]:
        first = self.prompt // self.block * self.block if self.alignment == "absolute" else self.prompt
        start = first + (position - first) // self.block * self.block
        return start, min(start + self.block, length)


@dataclass(frozen=True)
class State:
    """A branch: its tokens, with masks, and its unmasked positions."""

    tokens: Array
    unmasked: Array


class PlainCaches:
    """State of one request, round by round: call `logits`, then `keep`."""

    def __init__(self, network: PlainNetwork, setting: Setting) -> None:
        self._network, self._setting = network, setting
        self._kept: KeyValues | None = None
        self._places = np.empty(0, np.int64)
        self._part: tuple[int, ...] = ()
        self._around: KeyValues = []
        self._last: tuple[int, Array] | None = None
        self._after: list[tuple[KeyValues, Array, Array]] = []

    def logits(self, branches: Sequence[State], due: tuple[int, int] | None, start: int) -> list[Array]:
        """Return [L + 1, V] for each branch, the anchor last: the logits that predict each position, NaN without one.

        `due` is the range of positions that the round commits. `start` is the start of the first uncommitted block, or
        0 for the block of the first masked position. Both matter only for approximate caches.
        """
        setting = self._setting
        if setting.cache == "none" or (setting.cache == "blocks" and setting.window != "full"):
            return [self._one_pass(state) for state in branches]
        if setting.cache in ("prefix", "dual"):
            at = start or int(np.flatnonzero(~branches[-1].unmasked)[0])
            return [self._around_block(state, at, number) for number, state in enumerate(branches)]
        if setting.cache == "sub_block":
            if due is not None:  # alone: the next block opens after the commit of its rows
                return self._finished_blocks(branches, due, start)
            return [self._around_sub_block(state, branches[-1], start) for state in branches]
        return self._finished_blocks(branches, due, start)

    def keep(self, winner: int) -> None:
        """Record the winner of the round."""
        if self._after:
            kept, places, last = self._after[winner]
            self._kept = kept if self._kept is None else joined(self._kept, kept)
            self._places = np.concatenate([self._places, places])
            self._last = (len(self._places), last)
            self._after = []

    def _by_position(self, positions: Array, logits: Array, length: int) -> Array:
        found = np.full((length + 1, logits.shape[1]), np.nan)
        found[positions + self._setting.shift] = logits
        return found

    def _one_pass(self, state: State) -> Array:
        order = np.arange(len(state.tokens))
        if self._setting.alignment == "sliding":
            order = np.concatenate([np.flatnonzero(state.unmasked), np.flatnonzero(~state.unmasked)])
            sees = np.tri(len(order), dtype=bool)
        elif self._setting.window == "block_causal":
            numbers = self._setting.number(order)
            sees = numbers[:, None] >= numbers[None, :]
        else:
            sees = np.ones((len(order), len(order)), bool)
        logits, _ = self._network.rows(state.tokens[order], order, sees)
        return self._by_position(order, logits, len(order))

    def _around_block(self, state: State, at: int, branch: int) -> Array:
        """Return logits with rows that predict the positions of the block around `at` computed in each of its rounds.

        With the prefix cache all rows behind the block are computed too. Other rows are from the block's first round,
        which computes everything.
        """
        length, every = len(state.tokens), np.arange(len(state.tokens))
        start, end = self._setting.block_around(at, length)
        inside = (every >= start - self._setting.shift) & ((every < end) | (self._setting.cache == "prefix"))
        if self._part != (start,):
            assert branch == 0
            logits, rows = self._network.rows(state.tokens, every, np.ones((length, length), bool))
            self._part, self._kept, self._places = (start,), rows, every
            return self._by_position(every, logits, length)
        assert self._kept is not None
        own = every[inside]
        kept = rows_of(self._kept, every[~inside])  # rows of the first round, indexed by position
        logits, _ = self._network.rows(state.tokens[own], own, np.ones((len(own), length), bool), kept)
        return self._by_position(own, logits, length)

    def _around_sub_block(self, state: State, anchor: State, start: int) -> Array:
        """Return logits where rows outside the open sub-block are from the last round that computed the whole block.

        These are the block's first round, and all rounds in which the first position of the open sub-block is masked.
        """
        setting, length = self._setting, len(state.tokens)
        assert setting.sub_block is not None
        first_masked = int(np.flatnonzero(~anchor.unmasked)[0])
        first = start + (first_masked - start) // setting.sub_block * setting.sub_block
        part, every = (start, first), np.arange(start, length)
        if self._part != part or not anchor.unmasked[first]:
            sees = np.ones((len(every), length), bool)
            logits, self._around = self._network.rows(state.tokens[start:], every, sees, self._kept)
            self._part = part
            found = self._by_position(every, logits, length)
            if setting.shift and self._last is not None and self._last[0] == start:
                found[start] = self._last[1]
            return found
        own = np.arange(first, min(first + setting.sub_block, length))
        kept = rows_of(self._around, np.setdiff1d(every, own) - start)
        kept = kept if self._kept is None else joined(self._kept, kept)
        logits, _ = self._network.rows(state.tokens[own], own, np.ones((len(own), length), bool), kept)
        return self._by_position(own, logits, length)

    def _finished_blocks(self, branches: Sequence[State], due: tuple[int, int] | None, start: int) -> list[Array]:
        """Return logits where rows of finished blocks are from the next round, in which they attended to everything.

        The same round gives the last row's prediction of the position behind it.
        """
        found = []
        for state in branches:
            length = len(state.tokens)
            own = np.arange(start, length)
            sees = np.ones((len(own), length), bool)
            if self._setting.window == "block_causal":
                numbers = self._setting.number(np.arange(length))
                sees = numbers[own][:, None] >= numbers[None, :]
            logits, rows = self._network.rows(state.tokens[own], own, sees, self._kept)
            by_position = self._by_position(own, logits, length)
            if self._setting.shift and self._last is not None and self._last[0] == start:
                by_position[start] = self._last[1]
            if due is not None:
                assert due[0] == start
                count = due[1] - start
                self._after.append((rows_of(rows, np.arange(count)), own[:count], logits[count - 1]))
            found.append(by_position)
        return found
