"""Predictions of a model in a round, by the definition of each cache, without the runtime's windows.

Exact caches have no definition but the sequence itself: one pass over all of it, nothing kept. The others are
approximations, and this is what they are (docs/concepts/decoding.md, "Caches"): which keys and values are computed in a
round, and
from which round those come that are not.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tests.conformance.plain.plain_network import Array, KeyValues, PlainNetwork, joined, rows_of


@dataclass(frozen=True)
class Setting:
    """How a model is decoded, as far as it matters to what it says."""

    cache: str
    window: str
    alignment: str
    shift: int
    prompt: int
    block: int
    sub_block: int | None = None

    def number(self, positions: Array) -> Array:
        """The block of each position."""
        if self.alignment == "absolute":
            return positions // self.block
        return np.where(positions < self.prompt, 0, 1 + (positions - self.prompt) // self.block)

    def block_around(self, position: int, length: int) -> tuple[int, int]:
        first = self.prompt // self.block * self.block if self.alignment == "absolute" else self.prompt
        start = first + (position - first) // self.block * self.block
        return start, min(start + self.block, length)


@dataclass(frozen=True)
class State:
    """A branch: its tokens, masks where nothing is decided, and which are."""

    tokens: Array
    decided: Array


class PlainCaches:
    """State of one request, round by round: `said`, then `keep`."""

    def __init__(self, network: PlainNetwork, setting: Setting) -> None:
        self._network, self._setting = network, setting
        self._kept: KeyValues | None = None
        self._places = np.empty(0, np.int64)
        self._part: tuple[int, ...] = ()
        self._around: KeyValues = []
        self._last: tuple[int, Array] | None = None
        self._after: list[tuple[KeyValues, Array, Array]] = []

    def said(self, branches: Sequence[State], due: tuple[int, int] | None, start: int) -> list[Array]:
        """[L + 1, V] for each branch, the anchor last: the logits that speak of each position, NaN where none do.

        `due`: first and one behind the last position that the round commits; `start`: where the first block begins that
        is not committed. Both are looked at where rows of finished blocks are kept and are not those of one pass.
        """
        setting = self._setting
        if setting.cache == "none" or (setting.cache == "blocks" and setting.window != "full"):
            return [self._one_pass(state) for state in branches]
        if setting.cache in ("prefix", "dual"):
            return [self._around_block(state, branches[-1], number) for number, state in enumerate(branches)]
        if setting.cache == "sub_block":
            if due is not None:  # alone: the next block opens when its rows are there
                return self._finished_blocks(branches, due, start)
            return [self._around_sub_block(state, branches[-1], start) for state in branches]
        return self._finished_blocks(branches, due, start)

    def keep(self, winner: int) -> None:
        """The round was won by this branch."""
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
            order = np.concatenate([np.flatnonzero(state.decided), np.flatnonzero(~state.decided)])
            sees = np.tri(len(order), dtype=bool)
        elif self._setting.window == "block_causal":
            numbers = self._setting.number(order)
            sees = numbers[:, None] >= numbers[None, :]
        else:
            sees = np.ones((len(order), len(order)), bool)
        logits, _ = self._network.rows(state.tokens[order], order, sees)
        return self._by_position(order, logits, len(order))

    def _around_block(self, state: State, anchor: State, branch: int) -> Array:
        """The rows that speak of a block's positions are computed in each of its rounds, and with the prefix cache all
        behind them; the others are of its first round, in which everything is computed."""
        length, every = len(state.tokens), np.arange(len(state.tokens))
        undecided = np.flatnonzero(~anchor.decided)
        start, end = self._setting.block_around(int(undecided[0]), length)
        inside = (every >= start - self._setting.shift) & ((every < end) | (self._setting.cache == "prefix"))
        if self._part != (start,):
            assert branch == 0
            logits, rows = self._network.rows(state.tokens, every, np.ones((length, length), bool))
            self._part, self._kept, self._places = (start,), rows, every
            return self._by_position(every, logits, length)
        assert self._kept is not None
        own = every[inside]
        kept = rows_of(self._kept, every[~inside])  # of the first round: places are positions
        logits, _ = self._network.rows(state.tokens[own], own, np.ones((len(own), length), bool), kept)
        return self._by_position(own, logits, length)

    def _around_sub_block(self, state: State, anchor: State, start: int) -> Array:
        """In a block those outside the open sub-block are of the last round in which all of the block was computed: its
        first, and all in which the first position of the open sub-block is a mask."""
        setting, length = self._setting, len(state.tokens)
        assert setting.sub_block is not None
        undecided = int(np.flatnonzero(~anchor.decided)[0])
        first = start + (undecided - start) // setting.sub_block * setting.sub_block
        part, every = (start, first), np.arange(start, length)
        if self._part != part or not anchor.decided[first]:
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
        """Rows of finished blocks are of the round that follows, in which they saw all that was there; what the last of
        them says of the position behind it was said then, too."""
        found = []
        for state in branches:
            length = len(state.tokens)
            own = np.arange(start, length)
            sees = np.ones((len(own), length), bool)
            if self._setting.window == "block_causal":
                numbers = self._setting.number(np.arange(length))
                sees = numbers[own][:, None] >= numbers[None, :]
            logits, rows = self._network.rows(state.tokens[own], own, sees, self._kept)
            said = self._by_position(own, logits, length)
            if self._setting.shift and self._last is not None and self._last[0] == start:
                said[start] = self._last[1]
            if due is not None:
                assert due[0] == start
                count = due[1] - start
                self._after.append((rows_of(rows, np.arange(count)), own[:count], logits[count - 1]))
            found.append(said)
        return found
