"""The rounds of a request on a session: its loop, which decodes or scores, its cache, and the forwards of several
requests."""

import time
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from lopa.runtime.contract import ForwardSplit, Int64, Statistics
from lopa.runtime.contract.packed_batch import CanvasRows, PackedBatch
from lopa.runtime.contract.row_statistics import RowStatistics, check_statistics, put_rows
from lopa.runtime.decoding.canvas_loop import CanvasLoop
from lopa.runtime.decoding.lopa_loop import LopaLoop
from lopa.runtime.decoding.step import Step
from lopa.runtime.requests.prefix_tree import Path, PrefixReuse, PrefixTree
from lopa.runtime.scoring.scoring import Scoring
from lopa.runtime.sessions.session import Session, next_request_number
from lopa.runtime.sessions.tickets import Ticket
from lopa.runtime.state.layout import Layout
from lopa.runtime.state.packed_rows import PackedRows, SharingTest, check_rows, with_shared_rows

MAX_PADDING = 0.25
"""Maximum padding of a forward, as a share of its real rows (measured: docs/measurements/serving.md)."""


class RequestCache:
    """The only owner of a request's rows: those in the session, and the blocks that it shares with other requests.

    A round calls `align` before its forward, then `with_last_row` and `commit`. `store` follows once all requests of
    the forward have committed their rows. Blocks of the tree are in use from the beginning until `end_sharing`.
    """

    def __init__(
        self,
        session: Session,
        tree: PrefixTree | None = None,
        reuse: PrefixReuse | None = None,
        prompt: Int64 | None = None,
    ) -> None:
        """Find the first blocks of `prompt` [n] in the `tree`, whose rows `load` appends.

        Without any of the three the request shares nothing.
        """
        self.session, self._tree, self._reuse = session, tree, reuse
        self.number = next_request_number()
        """Number of the request in the session."""
        self._path: Path | None = None
        if tree is not None and reuse is not None and prompt is not None:
            self._path = tree.acquire(reuse.key, reuse.blocks(prompt))
        self.reused = 0 if self._path is None else self._path.tokens
        """Number of prompt rows found instead of computed."""
        self.positions = np.arange(self.reused)
        """[P]: positions of the rows in the session, as the model counts them, in the cache's order."""
        self._last = None if self._path is None else self._path.last
        """[K]: statistics of the last committed row of finished blocks."""
        self._last_predicts = None if self._last is None else self.reused
        """Position that this row predicts."""
        self.ticket: Ticket | None = None
        """Ticket of the last forward with the request's rows."""
        self._stored = self.reused
        """Position behind the last row that was found or stored, or that waits for its block to be complete."""
        self._waiting_ids = np.empty(0, np.int64)
        """Ids of the positions before `_stored` in a block that is not complete yet."""

    def load(self) -> None:
        """Append the rows that were found, at least one, to the session."""
        assert self._path is not None
        self.session.append_kept(self.number, self._path.rows)
        if self.session.prefix_length(self.number) != self.reused:
            raise RuntimeError(f"the session has not appended {self.reused} kept rows (please report this bug)")

    def align(self, packed: PackedRows, layout: Layout) -> None:
        """Drop the cached rows that the `packed` rows of a round do not attend to.

        Raises RuntimeError if the cache begins with other rows, or if no row predicts a sampled position. Without these
        checks, wrong rows would cause wrong text.
        """
        if self.positions[: packed.prefix].tobytes() != packed.cached.tobytes():  # faster than np.array_equal
            raise RuntimeError(
                f"the cache holds the rows of {len(self.positions)} positions, expected those of the {packed.prefix} "
                "that a round needs (this is a bug in lopa, please report it)"
            )
        shift, unseen = layout.prediction_shift, layout.unseen
        check_rows(packed, prediction_shift=shift, unseen=unseen, kept_for=self._last_predicts)
        if packed.prefix < len(self.positions):
            self.session.shorten(self.number, packed.prefix)
            self.positions = packed.cached

    def with_last_row(self, packed: PackedRows, rows: RowStatistics) -> RowStatistics:
        """Write the statistics of the last committed row into those of `packed`, `rows` [C], where it predicts."""
        if self._last is not None and np.count_nonzero(packed.from_kept_row):
            put_rows(rows, packed.from_kept_row, self._last)
        return rows

    def commit(self, packed: PackedRows, rows: RowStatistics, winner: int) -> None:
        """Commit the finished rows of the branch `winner`, and keep the statistics of the last one from `rows`."""
        if packed.commit:
            assert self.ticket is not None  # rows are committed after a forward
            self.session.commit(self.ticket, self.number, packed.window_of(winner), packed.commit)
            self.positions = np.concatenate([self.positions, packed.positions[packed.rows_to_commit(winner)]])
        if packed.kept_columns:
            column = packed.first_columns[winner]
            self._last, self._last_predicts = rows[column], int(packed.column_positions[column])

    def store(self, packed: PackedRows, winner: int) -> None:
        """Store the blocks that are complete with the finished rows that the request committed last.

        Nothing is stored anymore once used blocks leave no space, or if the rows are not adjacent to the ones before.
        """
        if packed.is_final:
            self.store_rows(packed.prefix, packed.input_ids[packed.rows_to_commit(winner)])

    def store_rows(self, start: int, ids: Int64) -> None:
        """Store the blocks that the committed rows of finished blocks at position `start`, computed from `ids` [n],
        complete.
        """
        tree, path, reuse = self._tree, self._path, self._reuse
        if tree is None or path is None or reuse is None:
            return
        if start != self._stored or (reuse.whole_prompt and start):
            self._end_storing()
            return
        self._stored += len(ids)
        size, ids = reuse.block, np.concatenate([self._waiting_ids, ids])
        last = self._last.copy() if reuse.whole_prompt and self._last is not None else None
        while size <= len(ids):
            block = ids[:size].tobytes()
            if not tree.follow(path, block):
                if not tree.has_space(size):
                    self._end_storing()
                    return
                tree.add(path, block, self.session.keep_rows(self.number, self._stored - len(ids), size), last)
            ids = ids[size:]
        self._waiting_ids = ids

    def _end_storing(self) -> None:
        """Store nothing from now on. The blocks stay in use."""
        self._reuse, self._waiting_ids = None, self._waiting_ids[:0]

    def end_sharing(self) -> None:
        """End the use of shared blocks, and store nothing more. This may be called more than once."""
        self._end_storing()
        if self._tree is not None and self._path is not None:
            self._tree.release(self._path)
            self._path = None

    def release(self) -> None:
        """Free the rows in the session, after `end_sharing`, and a forward that an exception interrupted."""
        self.release_forward()
        self.session.free(self.number)

    def release_forward(self) -> None:
        """End the use of the last forward."""
        ticket, self.ticket = self.ticket, None
        if ticket is not None:
            self.session.release(ticket)


RequestLoop = LopaLoop | CanvasLoop | Scoring
"""The rounds of one request, without a session. A scoring request has no steps: rows of branch 0 are committed."""


class RunningLoop:
    """A loop with the cache of its request."""

    def __init__(self, loop: RequestLoop, cache: RequestCache, sharing: SharingTest | None = None) -> None:
        """Join `loop` and `cache`. `sharing` decides whether equal rows of several branches are computed once; None
        means never."""
        self.loop, self.cache, self._sharing = loop, cache, sharing
        self._opened = self._forward_began = 0.0

    def open_round(self) -> PackedRows:
        """Return the rows of a round, and make the cache ready for their forward."""
        self._opened = time.perf_counter()
        packed = self.loop.open_round(self.cache.positions)
        if self._sharing is not None:
            packed = with_shared_rows(packed, self._sharing)
        self.cache.align(packed, self.loop.layout)
        self._forward_began = time.perf_counter()
        return packed

    def finish_round(
        self, packed: PackedRows, rows: RowStatistics, split: ForwardSplit | None, is_valid: bool = False
    ) -> Step | None:
        """Process the statistics `rows` [C] of the round's `packed` rows, and commit the winner's rows.

        The ticket of their forward has to be the cache's, and not released. `split` is the forward's time by device,
        for the returned step. Raises NonFiniteAnswerError for statistics that are not finite, unless they are known to
        be valid; the loop is then unchanged.
        """
        loop, cache, began = self.loop, self.cache, time.perf_counter()
        seconds = {"windows": self._forward_began - self._opened, "forward": began - self._forward_began}
        if not is_valid:
            check_statistics(rows, loop.model.dimensions.vocab_size, device=cache.session.device, step=loop.steps + 1)
        step = loop.finish_round(packed, cache.with_last_row(packed, rows), split, seconds)
        committing = time.perf_counter()
        cache.commit(packed, rows, 0 if step is None else step.winner)
        seconds["commit"] = time.perf_counter() - committing
        return step

    def step(self) -> Step:
        """Run one round in a forward of its own."""
        packed = self.open_round()
        batch = batch_from_rows([packed], [self.cache.number], [self.loop.params.logits_temperature])
        self.cache.release_forward()
        self.cache.ticket = self.cache.session.start(batch)
        statistics = self.cache.session.wait(self.cache.ticket)
        (rows,) = columns_from_statistics(statistics, [packed])
        step = self.finish_round(packed, rows, statistics.split)
        assert step is not None
        return step


def groups_from_rows(requests: Sequence[PackedRows], max_padding: float) -> tuple[tuple[int, ...], ...]:
    """Return groups of requests that share a forward; each index of `requests` occurs once.

    Requests are assigned from the largest to the smallest. Each joins the first group whose padding stays within the
    limit. Requests of equal size always share a forward. An infinite `max_padding` gives one group, 0 one group per
    size.
    """
    shapes = [(len(each.lengths), max(each.lengths)) for each in requests]
    by_size = sorted(range(len(shapes)), key=lambda i: -shapes[i][0] * shapes[i][1])  # stable: equal sizes keep order
    groups, sizes = list[list[int]](), list[tuple[int, int, int]]()
    """Members of each group; most windows of one, its longest window, and its real rows."""
    for index in by_size:
        windows, length = shapes[index]
        for number, group in enumerate(groups):
            most, longest, rows = sizes[number]
            joined = max(most, windows), max(longest, length), rows + windows * length
            if (len(group) + 1) * joined[0] * joined[1] <= (1 + max_padding) * joined[2]:
                group.append(index)
                sizes[number] = joined
                break
        else:
            groups.append([index])
            sizes.append((windows, length, windows * length))
    return tuple(tuple(sorted(group)) for group in groups)


def groups_by_rows(sizes: Sequence[int], max_rows: int, complete: float) -> tuple[tuple[int, ...], ...]:
    """Return groups of requests with `sizes` rows, in order, that share a forward without padding.

    A group has at most `max_rows` rows or one request, and ends once it has `complete` rows.
    """
    groups: list[list[int]] = []
    rows = complete
    for index, size in enumerate(sizes):
        if rows >= complete or rows + size > max_rows:
            groups.append([])
            rows = 0
        groups[-1].append(index)
        rows += size
    return tuple(map(tuple, groups))


def batch_from_rows(rows: Sequence[PackedRows], requests: Sequence[int], temperatures: Sequence[float]) -> PackedBatch:
    """Return one forward for all `rows`, at least one, with the number and temperature of each request.

    A temperature of 0 decodes greedily and leaves the logits unchanged.
    """
    starts = list(accumulate((each.input_ids.size for each in rows[:-1]), initial=0))
    canvases = [] if rows[0].canvas is None else [each.canvas for each in rows if each.canvas is not None]
    if canvases:
        temperatures = [each.temperature or 1.0 for each in rows]
    return PackedBatch(
        requests=tuple(requests),
        temperature=np.array([temperature or 1.0 for temperature in temperatures], np.float32),
        slots=np.arange(len(rows)).repeat([len(each.lengths) for each in rows]),
        lengths=np.array([length for each in rows for length in each.lengths]),
        input_ids=np.concatenate([each.input_ids for each in rows]),
        position_ids=np.concatenate([each.positions for each in rows]),
        mask=rows[0].mask if len(rows) == 1 else np.concatenate([each.mask for each in rows]),
        sampled_rows=np.concatenate([each.sampled_rows for each in rows])
        + np.repeat(starts, [len(each.sampled_rows) for each in rows]),
        canvas=CanvasRows.joined(canvases) if canvases else None,
    )


def columns_from_statistics(statistics: Statistics, rows: Sequence[PackedRows]) -> list[RowStatistics]:
    """Return the columns [C] of each request from the `statistics` [M, ...] of a forward of their `rows`."""
    every = RowStatistics(
        statistics.topk_ids, statistics.topk_logprobs, statistics.entropy, statistics.logits, statistics.drawn_ids
    )
    found, begin = [], 0
    for packed in rows:
        results = every[begin : (begin := begin + len(packed.sampled_rows))]
        found.append(results if packed.answers is None else results.take(packed.answers))  # logits are large
    return found
