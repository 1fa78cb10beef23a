"""The rows of one request's round as one list, without padding, and the columns of statistics that the round reads.

A window is a run of rows that attend to each other and to the request's cached rows. Each branch has its own window,
window after window, until equal rows are shared: then one window holds the rows of all branches. Shadow rows follow the
anchor's rows (lopa.runtime.state.shadow_rows).

A column is one position whose statistics a branch reads. The row of an earlier round, the kept row, may predict it.

`DecodingParams.cache` determines which rows of a branch are cached. Rows of finished blocks are exact if rows attend to
nothing behind their block (block_causal, causal), and otherwise approximate. The other caches come from Fast-dLLM, for
models that attend to the whole sequence. They cache rows temporarily although later tokens would change them, and
recompute them at the next block.

The rows of a block are the rows that predict its positions. If a row predicts the next position, they include the row
before the block, which predicts its first position and is computed in every round. (Fast-dLLM's code for Dream caches
that row, and unmasks the first position in the block's first round at any confidence.) See docs/reference/algorithm.md,
section 2.

Equal rows of several branches are computed once. A row depends on the shared prefix, on its token and position, and on
the rows that it attends to, through all layers. Rows for which all of these match the anchor need no second
computation. With block-causal attention these are the rows of the blocks before the one with a lookahead token. The
mask alone expresses which row attends to which row, so graphs need no support for it. Every row attends to the same
rows as before, but the order of the sums changes, which may change the last bits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from lopa.runtime.contract import Bool, Int64
from lopa.runtime.contract.packed_batch import CanvasRows
from lopa.runtime.contract.records import derived, record
from lopa.runtime.options import DecodingParams
from lopa.runtime.state.branch import BlockState, Branch, open_span
from lopa.runtime.state.context import Context
from lopa.runtime.state.layout import Layout

_MAX_KEPT_MASK = 512
"""Most rows of a window whose mask is kept for later rounds."""
KEPT_ROW = -1
"""Value in `PackedRows.column_rows` of the row that an earlier round computed last."""


@record
class PackedRows:
    """N rows in S windows, all on the same cached rows, and the C columns of B branches, the anchor last.

    The columns of a branch are its kept column, if any, then its sampled and its editable positions. The anchor's
    remaskable positions follow. When finished rows are committed and a row predicts the next position, the kept column
    belongs to the last committed row. It alone predicts the first position behind it in all rounds until the next
    commit.
    """

    prefix: int
    """Number of cached rows that every row attends to. The session drops later ones before the forward."""
    commit: int
    """Number of leading rows of a window that the winner commits, 0 for none."""
    lengths: tuple[int, ...]
    """Number of rows of each window [S]: one window per branch, or one for all."""
    branch_lengths: tuple[int, ...]
    """Number of rows that each branch [B] attends to or samples, shared ones included."""
    input_ids: Int64
    """Token ids [N]."""
    positions: Int64
    """Positions [N], as the model counts them."""
    mask: Bool
    """The windows' attention masks [L, L] in row-major order, one after another, as in PackedBatch."""
    sampled: tuple[Int64, ...]
    """Sampled positions of each branch, ascending: its masked ones, with exceptions for published quirks and
    layouts."""
    kept_columns: int
    """Number of kept columns of each branch, 0 or 1."""
    column_positions: Int64
    """Positions [C], absolute."""
    column_rows: Int64
    """Row [C] that predicts each column, or KEPT_ROW."""
    editable: tuple[Int64, ...] = ()
    """Unmasked positions of each branch that the round may edit, ascending; empty if the decode does not edit."""
    remaskable: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    """Unmasked positions of the anchor that shadow rows verify, ascending."""
    cached: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    """Positions [prefix] of the cached rows, as the model counts them, in the cache's order."""
    is_final: bool = True
    """True if the rows to commit are final: rows of finished blocks."""
    canvas: CanvasRows | None = None
    """Inputs of contract 2; None in contract 1."""
    temperature: float | None = None
    """Temperature of the round in contract 2; None for that of the request."""

    @property
    def branch_columns(self) -> tuple[int, ...]:
        """Number of columns of each branch [B]."""
        return tuple(stop - first for first, stop in pairwise((*self.first_columns, len(self.column_positions))))

    @derived
    def first_columns(self) -> tuple[int, ...]:
        """First column of each branch [B]."""
        counts = [self.kept_columns + len(each) for each in self.sampled]
        for branch, each in enumerate(self.editable):
            counts[branch] += len(each)
        return (0, *accumulate(counts[:-1]))

    @property
    def sampled_per_branch(self) -> tuple[int, ...]:
        """Number of rows of the round that predict columns of each branch [B], each row once."""
        branches = np.split(self.column_rows, self.first_columns[1:])
        return tuple(len({*rows.tolist()} - {KEPT_ROW}) for rows in branches)

    def sampled_columns(self, branch: int) -> slice:
        """Return the columns of the sampled positions of `branch`."""
        first = self.first_columns[branch] + self.kept_columns
        return slice(first, first + len(self.sampled[branch]))

    def editable_columns(self, branch: int) -> slice:
        """Return the columns of the editable positions of `branch`."""
        first = self.sampled_columns(branch).stop
        return slice(first, first + len(self.editable[branch]))

    @property
    def remaskable_columns(self) -> slice:
        """Columns of the remaskable positions."""
        return slice(len(self.column_positions) - len(self.remaskable), len(self.column_positions))

    @derived
    def from_kept_row(self) -> Bool:
        """Mask [C] of the columns that the kept row predicts."""
        is_kept: Bool = self.column_rows == KEPT_ROW
        return is_kept

    @derived
    def sampled_rows(self) -> Int64:
        """Rows [M] that predict a column, each once, ascending; the first row if there are none."""
        is_sampled = np.zeros(self.input_ids.size + 1, np.bool_)
        is_sampled[self.column_rows] = True  # the kept row, -1, marks the last element, which is no row
        rows = is_sampled[:-1].nonzero()[0]
        return rows if rows.size else np.zeros(1, np.int64)

    @derived
    def answers(self) -> Int64 | None:
        """Index of each column's row [C] in `sampled_rows`, any index for the kept row; None if these are the rows."""
        if self.column_rows.tobytes() == self.sampled_rows.tobytes():
            return None
        return self.sampled_rows.searchsorted(self.column_rows)

    def window_of(self, branch: int) -> int:
        """Return the window with the rows of `branch`."""
        return min(branch, len(self.lengths) - 1)

    def rows_to_commit(self, branch: int) -> slice:
        """Return the rows that are committed if `branch` wins."""
        first = sum(self.lengths[: self.window_of(branch)])
        return slice(first, first + self.commit)

    @property
    def masks(self) -> list[Bool]:
        """Attention mask [L, L] of each window [S]."""
        ends = accumulate(length**2 for length in self.lengths)
        return [
            self.mask[end - length**2 : end].reshape(length, length)
            for length, end in zip(self.lengths, ends, strict=True)
        ]


@dataclass(frozen=True)
class BranchRows:
    """The rows of one branch in a round."""

    cached: Int64
    """[P]: positions of the cached rows that they attend to, in the cache's order."""
    order: Int64
    """[W]: positions of the rows, with the rows to commit first."""
    commit: int
    """Number of leading rows to commit."""
    is_final: bool = True
    """True if the committed rows are final: rows of finished blocks."""
    is_partial: bool = False
    """True if no row predicts some masked positions of open blocks, which wait for a later round."""

    @derived
    def row_at(self) -> Int64:
        """Index in `order` of each position up to the last row's, or KEPT_ROW."""
        rows = np.full(self.order.max(initial=-1) + 1, KEPT_ROW)
        rows[self.order] = np.arange(len(self.order))
        return rows


def rows_from_branch(branch: Branch, anchor: Branch, params: DecodingParams) -> BranchRows:
    """Return the rows of `branch` in a round of `anchor`, whose blocks determine which rows are due.

    Except with a sliding block, they depend on no more of `branch` than its length and layout.
    """
    return (_rows_of_sliding_block if params.slides else _ROWS_BY_CACHE[params.cache])(branch, anchor, params)


def _rows_with_block_cache(branch: Branch, anchor: Branch, _: DecodingParams) -> BranchRows:
    """Return the rows behind the cached blocks; finished blocks are committed."""
    due = anchor.due
    start = (due or anchor.active)[0].start
    commit = due[-1].end - start if due else 0
    return _adjacent_rows(branch.layout.unseen, start, len(branch.tokens), commit)


@lru_cache(maxsize=64)
def _adjacent_rows(first: int, start: int, end: int, commit: int) -> BranchRows:
    """Return the rows from `start` to `end`, with those from `first` on cached. Many rounds and requests share them."""
    return BranchRows(np.arange(first, start), np.arange(start, end), commit)


def _rows_of_sliding_block(branch: Branch, anchor: Branch, params: DecodingParams) -> BranchRows:
    """Return the rows of a sliding block: unmasked positions first, then masked ones (WeDLM).

    Rows attend only to rows before them. The due rows, unmasked and leading, therefore depend only on their own and
    earlier tokens.
    """
    found = _rows_with_block_cache(branch, anchor, params)
    return replace(found, order=found.order[np.argsort(~branch.unmasked[found.order], kind="stable")])


def _rows_without_cache(branch: Branch, _: Branch, __: DecodingParams) -> BranchRows:
    """Return every row, in every round (LLaDA)."""
    return BranchRows(np.empty(0, np.int64), np.arange(len(branch.tokens)), 0)


def _rows_with_prefix_cache(branch: Branch, anchor: Branch, _: DecodingParams) -> BranchRows:
    """Return the rows with Fast-dLLM's prefix cache.

    A block's first round computes every row and keeps the rows before the block.
    """
    block, length = anchor.active[0], len(branch.tokens)
    first = block.start - branch.layout.prediction_shift
    if not block.rounds:
        return BranchRows(np.empty(0, np.int64), np.arange(length), first, is_final=False)
    return BranchRows(np.arange(first), np.arange(first, length), 0)


def _rows_with_dual_cache(branch: Branch, anchor: Branch, _: DecodingParams) -> BranchRows:
    """Return the rows with Fast-dLLM's dual cache.

    A block's first round computes every row and keeps the rows before and behind the block. Keys contain their
    positions, so cached rows may be in any order. Rows to cache come first in the window.
    """
    block = anchor.active[0]
    outside, inside = _split_range(0, len(branch.tokens), block.start - branch.layout.prediction_shift, block.end)
    if not block.rounds:
        return BranchRows(np.empty(0, np.int64), np.concatenate([outside, inside]), len(outside), is_final=False)
    return BranchRows(outside, inside, 0)


def _rows_with_sub_block_cache(branch: Branch, anchor: Branch, params: DecodingParams) -> BranchRows:
    """Return the rows with Fast-dLLM v2's block cache.

    Finished blocks are committed. Within a block, rows outside the open sub-block are kept once the sub-block's first
    position is unmasked. Until then every round computes the whole block and keeps these rows again. The sub-block's
    rows alone therefore never have to predict its first position, which the row before it may predict.
    """
    if not anchor.active:
        return _rows_with_block_cache(branch, anchor, params)
    block = anchor.active[0]
    before = np.arange(branch.layout.unseen, block.start)
    span = open_span(anchor, block, params)
    outside, inside = _split_range(block.start, block.end, *span)
    if block.rounds and anchor.unmasked[span[0]]:
        return BranchRows(np.concatenate([before, outside]), inside, 0, is_partial=True)
    return BranchRows(before, np.concatenate([outside, inside]), len(outside), is_final=False)


_ROWS_BY_CACHE: Mapping[str, Callable[[Branch, Branch, DecodingParams], BranchRows]] = {
    "blocks": _rows_with_block_cache,
    "none": _rows_without_cache,
    "prefix": _rows_with_prefix_cache,
    "dual": _rows_with_dual_cache,
    "sub_block": _rows_with_sub_block_cache,
}


def _split_range(first: int, end: int, inner: int, inner_end: int) -> tuple[Int64, Int64]:
    """Return the positions from `first` to `end` outside the range from `inner` to `inner_end`, and the positions
    inside it.
    """
    outside = np.concatenate([np.arange(first, inner), np.arange(inner_end, end)])
    return outside, np.arange(inner, inner_end)


def attention_mask(order: Int64, layout: Layout, params: DecodingParams) -> Bool:
    """Return which row attends to which, [W, W], for rows at the positions `order`."""
    if params.attention == "full":
        numbers = np.zeros(len(order), np.int32)
    elif params.attention == "causal":
        numbers = np.arange(len(order), dtype=np.int32)
    else:
        numbers = layout.block_numbers(order).astype(np.int32)
        numbers -= numbers[:1]
    return mask_of_numbers(numbers) if len(order) > _MAX_KEPT_MASK else _kept_mask(numbers.tobytes())


@lru_cache(maxsize=64)
def _kept_mask(numbers: bytes) -> Bool:
    """Return `mask_of_numbers` of int32 `numbers` [W]. Rounds have few different ones, and share the mask."""
    return mask_of_numbers(np.frombuffer(numbers, np.int32))


def mask_of_numbers(numbers: npt.NDArray[np.int32]) -> Bool:
    """Return a mask with which rows attend to those of their own block and earlier ones, [W, W], by block `numbers`."""
    mask: Bool = numbers[:, None] >= numbers
    mask.flags.writeable = False
    return mask


def sampled_positions(branch: Branch, params: DecodingParams) -> Int64:
    """Return the positions that a round samples, ascending: the masked ones of all opened blocks.

    The published rules that unmask a fixed number per step also sample unmasked ones (docs/concepts/decoding.md,
    "Reference mode").
    """
    if params.overwrites_unmasked:
        spans = [np.arange(block.start, block.end) for block in branch.active]
        return np.concatenate([np.empty(0, np.int64), *spans])
    return branch.masked[: branch.masked.searchsorted(branch.blocks[-1].end)]


def editable_positions(branch: Branch) -> Int64:
    """Return the positions that a round may edit, ascending: unmasked ones of active blocks behind the prompt."""
    found = np.zeros(len(branch.tokens), np.bool_)
    for block in branch.active:
        found[block.start : block.end] = True
    found[: branch.layout.prompt] = False
    return np.flatnonzero(found & branch.unmasked)


def pack_rows(branches: tuple[Branch, ...], context: Context, *, anew: bool = False) -> PackedRows:
    """Return the rows of a round's `branches`. The anchor, the last one, determines which rows are cached.

    With `anew`, temporarily cached rows are computed again, as in a block's first round.
    """
    params, shift, anchor = context.params, context.prediction_shift, branches[-1]
    states = tuple(map(_as_in_first_round, branches)) if anew else branches
    every = [rows_from_branch(state, states[-1], params) for state in states]
    due, unseen = every[-1], anchor.layout.unseen
    lengths = tuple([len(each.order) for each in every])

    sampled = tuple([sampled_positions(branch, params) for branch in branches])
    if due.is_partial:
        sampled = tuple(own[np.isin(own - shift, each.order)] for own, each in zip(sampled, every, strict=True))
    editable = tuple(editable_positions(branch) for branch in branches) if params.edits else ()
    kept = due.order[:1] + due.commit if due.commit and due.is_final and shift else due.order[:0]
    groups = (sampled, editable) if editable else (sampled,)
    columns = [_joined((kept, *each) if len(kept) else each) for each in zip(*groups, strict=True)]
    # No row predicts the first position that has a row. Published quirks that sample this position use its own row.
    predicting = [np.maximum(each - shift, unseen) for each in columns]
    column_rows = _joined([each.row_at[own] for own, each in zip(predicting, every, strict=True)])
    if len(branches) > 1:
        first = np.repeat((0, *accumulate(lengths[:-1])), [*map(len, columns)])
        column_rows += np.where(column_rows == KEPT_ROW, 0, first)
    return PackedRows(
        len(due.cached),
        due.commit,
        lengths,
        lengths,
        _joined([branch.tokens[each.order] for branch, each in zip(branches, every, strict=True)]),
        _joined([each.order for each in every]) - unseen,
        _masks(branches, every, context),
        sampled,
        len(kept),
        _joined(columns),
        column_rows,
        editable,
        cached=due.cached - unseen,
        is_final=due.is_final,
    )


def _joined(arrays: Sequence[Int64]) -> Int64:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _masks(branches: Sequence[Branch], every: Sequence[BranchRows], context: Context) -> Bool:
    """Return the masks of the branches' rows. Leading equal rows have the same mask in every branch."""
    longest = max([each.order for each in every], key=len)
    seen = attention_mask(longest, branches[-1].layout, context.params)
    if len(every) == 1:
        return seen.ravel()
    masks = []
    for branch, each in zip(branches, every, strict=True):
        length = len(each.order)
        alike = each.order is longest or np.array_equal(each.order, longest[:length])
        mask = seen[:length, :length] if alike else attention_mask(each.order, branch.layout, context.params)
        masks.append(mask.ravel())
    return np.concatenate(masks)


def _as_in_first_round(branch: Branch) -> Branch:
    """Return `branch` as if its active blocks had just been opened."""
    blocks = (block._replace(rounds=0) if block.state is BlockState.ACTIVE else block for block in branch.blocks)
    return branch.changed(blocks=tuple(blocks))


def check_rows(packed: PackedRows, *, prediction_shift: int, unseen: int, kept_for: int | None) -> None:
    """Raise RuntimeError if no row predicts some column of `packed`.

    A position is predicted by a row of the round or by the kept row, which predicts position `kept_for` (None without a
    kept row). `unseen` is `Layout.unseen`. Without this check, a wrong row would cause wrong text without an error.
    """
    needed, rows = packed.column_positions, packed.sampled_rows
    found = packed.positions[rows if packed.answers is None else rows[packed.answers]]
    right: Bool = found == np.maximum(needed - (prediction_shift + unseen), 0)
    if packed.answers is not None:
        right = np.where(packed.from_kept_row, needed == kept_for, right)
    if np.count_nonzero(right) < len(right):
        raise RuntimeError(
            f"no row predicts the positions {np.unique(needed[~right])}, "
            "expected a computed or kept row for every sampled position (this is a bug in lopa, please report it)"
        )


SharingTest = Callable[[PackedRows, int, int], bool]
"""Function that returns True if one shared window is faster. Its arguments are the rows in separate windows, and the
numbers of rows and sampled rows of the shared one.
"""


def with_shared_rows(packed: PackedRows, is_faster: SharingTest) -> PackedRows:
    """Return `packed` with all rows in one window, each once, if that is smaller and `is_faster` returns True.

    The anchor's rows come first, then the rows in which other branches differ. Windows stay separate if the rows to
    commit differ between branches, because the winner is not known yet.
    """
    windows, width, first = len(packed.lengths), max(packed.lengths), packed.lengths[-1]
    if windows == 1:
        return packed
    places = np.concatenate([np.arange(length) for length in packed.lengths])
    """Index of each row [N] in its window, then in the shared one."""
    own = np.flatnonzero(~rows_of_anchor(packed))
    total = first + len(own)
    if (places[own] < packed.commit).any() or total >= windows * width:
        return packed
    places[own] = np.arange(first, total)
    column_rows = np.where(packed.from_kept_row, KEPT_ROW, places[packed.column_rows])
    if not is_faster(packed, total, max(1, len(np.unique(column_rows[column_rows != KEPT_ROW])))):
        return packed

    rows = np.concatenate([np.arange(len(places) - first, len(places)), own])
    mask = np.zeros((total, total), np.bool_)
    begin = 0
    for length, seen in zip(packed.lengths, packed.masks, strict=True):
        inside = rows[(rows >= begin) & (rows < begin + length)]
        mask[places[inside][:, None], places[begin : begin + length]] = seen[inside - begin]
        begin += length
    return replace(
        packed,
        lengths=(total,),
        input_ids=packed.input_ids[rows],
        positions=packed.positions[rows],
        mask=mask.ravel(),
        column_rows=column_rows,
    )


def rows_of_anchor(packed: PackedRows) -> Bool:
    """Return which rows [N] equal the anchor's row at the same place in everything that they depend on.

    The anchor is the last window.
    """
    ends = np.cumsum(packed.lengths)[:-1]
    windows = zip(np.split(packed.input_ids, ends), np.split(packed.positions, ends), packed.masks, strict=True)
    *others, (anchor_ids, anchor_positions, anchor_mask) = windows
    found = []
    for ids, positions, mask in others:
        count = min(len(ids), len(anchor_ids))
        alike = np.zeros(len(ids), np.bool_)
        alike[:count] = (
            (ids[:count] == anchor_ids[:count])
            & (positions[:count] == anchor_positions[:count])
            & (mask[:count, :count] == anchor_mask[:count, :count]).all(axis=-1)
            & ~mask[:count, count:].any(axis=-1)
            & ~anchor_mask[:count, count:].any(axis=-1)
        )
        while (sees_another := alike & (mask & ~alike).any(axis=-1)).any():
            alike &= ~sees_another
        found.append(alike)
    return np.concatenate([*found, np.ones(len(anchor_ids), np.bool_)])
