"""Measure the cost table of a bundle on a device: seconds of a forward by branches, window and prefix.

Each round visits the shapes in random order, so a slow phase of the machine affects all parts of the table.
"""

import itertools
import math
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from lopa.bench.eval_set import eval_set_from_jsonl
from lopa.bench.forward.work import ForwardShape
from lopa.bench.progress import BenchProgress, silent
from lopa.bench.report import date_now, machine_now
from lopa.bench.table import Table, ms_text, table_from_records
from lopa.export.verify.cases import random_windows
from lopa.runtime.bundle.costs import COSTS_SCHEMA, DeviceCosts, ForwardCost
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import CONTRACT_VERSION, CacheRows, Rows, stored_dtype, stored_from_float32
from lopa.runtime.contract.packed_batch import CanvasRows, PackedBatch, packed_batch
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError
from lopa.runtime.options import MAX_AUTO_BRANCHES
from lopa.runtime.requests.observer import AdmissionReport, EndReport, RoundReport
from lopa.runtime.requests.request import Request
from lopa.runtime.sessions.sequential_session import SequentialSession
from lopa.runtime.sessions.wrapped_session import TypedSession
from lopa.tiny import EVAL


def random_prefix_rows(manifest: Manifest, rows: int, rng: np.random.Generator) -> CacheRows:
    """Return rows to append to a request's prefix, distributed like normalized keys and values."""
    sizes, arrays = manifest.dimensions, list[Rows]()
    shape = (2, sizes.cache_heads, rows, sizes.cache_head_size)
    for layer in range(sizes.layers):
        pair = rng.standard_normal(shape, np.float32)
        pair[..., math.prod(sizes.attention_heads(layer)) // sizes.cache_heads :] = 0
        arrays.extend(stored_from_float32(pair, stored_dtype(manifest.dtype)))
    return CacheRows(tuple(arrays))


def random_window(manifest: Manifest, request: int, shape: ForwardShape, rng: np.random.Generator) -> PackedBatch:
    """Return random tokens after the prefix. Every row attends to its whole window, and the last `wanted` rows are
    sampled. With canvases, each window is the first step of one."""
    sizes = (shape.branches, shape.window, shape.wanted)
    batch = random_windows((request,), sizes, manifest.dimensions.vocab_size, rng, start=shape.prefix)
    last = np.arange(shape.window - shape.wanted, shape.window)
    packed = packed_batch(replace(batch, logits_index=np.broadcast_to(last, batch.logits_index.shape)))
    if (canvas := manifest.dimensions.canvas) is None:
        return packed
    ids = packed.input_ids
    start, uniform = shape.prefix - canvas.sliding_window + 1, rng.random(len(packed.sampled_rows), np.float32)
    rows = CanvasRows(np.ones(ids.shape, np.bool_), np.full_like(ids, start), np.full_like(ids, -1), uniform)
    return replace(packed, canvas=rows)


BUDGET = 600.0
"""Maximum seconds for the minimum number of rounds. A slower model gets a coarser grid."""
ENOUGH = 40.0
"""Seconds after which no more than the minimum number of rounds is measured."""
MIN_ROUNDS, _MAX_ROUNDS = 3, 25
"""Minimum and maximum rounds. The table has the medians."""
_SHORT = 0.05
"""Seconds below which a forward is noticeably faster directly after one of the same shape."""
_HOST_PROMPTS = 4
_HOST_SECONDS = 10.0
"""Time limit of a prompt in seconds. In a slow model the host's share is small, so a rough value suffices."""


@dataclass(frozen=True)
class Grid:
    """Points of a table: all combinations of the values. `blocks` are window sizes in blocks."""

    branches: tuple[int, ...]
    blocks: tuple[int, ...]
    prefixes: tuple[int, ...]


GRIDS = (
    Grid((1, 2, 3, 4, 6, 8), (1, 2, 3, 4), (64, 128, 256, 512, 1024, 2048)),
    Grid((1, 2, 3, 4, 6, 8), (1, 2, 3, 4), (64, 256, 1024)),
    Grid((1, 2, 4, 8), (1, 2, 4), (64, 512)),
    Grid((1, 4, 8), (1, 4), (64, 512)),
)
"""Grids, finest first."""


@dataclass(frozen=True)
class Schedule:
    """Shapes to measure, each once per round."""

    shapes: tuple[ForwardShape, ...]
    rounds: int
    """Maximum number of rounds."""
    enough: float = math.inf
    """Seconds after which no round starts, once MIN_ROUNDS are done."""

    @property
    def forwards(self) -> int:
        """Maximum number of timed forwards."""
        return self.rounds * len(self.shapes)

    def rounds_in(self, seconds_a_forward: float) -> int:
        """Return the number of rounds at this speed."""
        in_time = self.enough / (seconds_a_forward * len(self.shapes))
        return int(min(max(in_time, MIN_ROUNDS), self.rounds))


def schedule_for_decoder(decoder: Decoder, budget: float = BUDGET) -> Schedule:
    """Return the finest grid whose MIN_ROUNDS rounds take about `budget` seconds or less, or the coarsest grid.

    One large forward gives the estimate. Raises BadInputError for a model with too few positions.
    """
    manifest = decoder.bundle.manifest
    seconds_a_row = _seconds_a_row(decoder, shapes_of_grid(GRIDS[-1], manifest)[-1])
    for grid in GRIDS:
        shapes = shapes_of_grid(grid, manifest)
        seconds_a_round = seconds_a_row * sum(shape.branches * shape.window for shape in shapes)
        if MIN_ROUNDS * seconds_a_round <= budget:
            break
    return Schedule(tuple(shapes), _MAX_ROUNDS, ENOUGH)


def measured_costs(
    decoder: Decoder, schedule: Schedule, *, threads: int | None, progress: BenchProgress = silent
) -> DeviceCosts:
    """Return the table of `decoder`'s session, which was opened with `threads`.

    `progress` receives the finished forwards and the expected total, which depends on the speed.
    """
    host_seconds, host_seconds_a_branch = host_cost(decoder)
    return DeviceCosts(
        schema=COSTS_SCHEMA,
        contract=CONTRACT_VERSION,
        device=decoder.session.device,
        machine=machine_now().cpu,
        threads=threads,
        weights_sha256=decoder.bundle.manifest.weights_digest,
        measured=date_now(),
        host_seconds=host_seconds,
        host_seconds_a_branch=host_seconds_a_branch,
        points=[
            ForwardCost(
                branches=shape.branches,
                window=shape.window,
                prefix=shape.prefix,
                seconds=statistics.median(found),
            )
            for shape, found in time_forwards(decoder, schedule, progress).items()
        ],
    )


def shapes_of_grid(grid: Grid, manifest: Manifest) -> list[ForwardShape]:
    """Return the shapes of `grid` that the model has positions for, largest last. All window positions are sampled."""
    block = manifest.decoding.block_size
    max_prefix = manifest.dimensions.max_positions - block * max(grid.blocks)
    prefixes = [prefix for prefix in grid.prefixes if prefix <= max_prefix]
    if not prefixes:
        raise BadInputError(
            f"the model has only {manifest.dimensions.max_positions} positions",
            expected=f"at least {min(grid.prefixes) + block * max(grid.blocks)}: the smallest prefix and "
            f"{max(grid.blocks)} blocks of {block}",
            remedy="set --branches instead of using a cost table",
        )
    return [
        ForwardShape(branches, blocks * block, prefix, wanted=blocks * block)
        for prefix, branches, blocks in itertools.product(prefixes, grid.branches, grid.blocks)
    ]


def time_forwards(
    decoder: Decoder, schedule: Schedule, progress: BenchProgress = silent
) -> dict[ForwardShape, list[float]]:
    """Return the seconds of session.forward for every shape, once per round."""
    rng, order = np.random.default_rng(0), random.Random(0)
    seconds: dict[ForwardShape, list[float]] = {shape: [] for shape in schedule.shapes}
    began, done, rounds = time.perf_counter(), 0, 0
    with _random_prefixes(decoder, sorted({shape.prefix for shape in schedule.shapes}), rng) as requests:
        while done == 0 or rounds < schedule.rounds_in((time.perf_counter() - began) / done):
            rounds += 1
            for prefix in order.sample(sorted(requests), len(requests)):
                chosen = [shape for shape in schedule.shapes if shape.prefix == prefix]
                # The first forward on another prefix also binds the prefix to the engine, which a decode does only once
                # in many steps.
                _forward_seconds(decoder, requests[prefix], min(chosen, key=lambda s: s.branches * s.window), rng)
                for shape in order.sample(chosen, len(chosen)):
                    seconds[shape].append(_forward_seconds(decoder, requests[prefix], shape, rng))
                    done += 1
                    progress(done, len(schedule.shapes) * schedule.rounds_in((time.perf_counter() - began) / done))
    return seconds


def host_cost(decoder: Decoder) -> tuple[float, float]:
    """Return the host seconds of a round with one branch, and the seconds that each further branch adds.

    Host time is everything outside the session's forward: windows, packing, selection, text and events. Threads of an
    engine or a server can add to it.
    """
    one, _ = _host_rounds(decoder, 1)
    many, branches = _host_rounds(decoder, MAX_AUTO_BRANCHES)
    further = branches - 1
    return one, max(0.0, (many - one) / further) if further else 0.0


def _host_rounds(decoder: Decoder, branches: int) -> tuple[float, float]:
    """Return the median seconds outside the forward, and the number of branches, over the first embedded prompts.

    Rounds with fewer branches than usual are excluded, such as the first of a request.
    """
    config = decoder.config(strategy="lopa", branches=branches, time_limit=_HOST_SECONDS)
    rounds, counts = _Rounds(), list[int]()
    for item in eval_set_from_jsonl(EVAL, limit=_HOST_PROMPTS):
        pool = decoder._pool(cache_tokens=0, observer=rounds)
        job = decoder._job(Request(item.prompt, config), on_step=lambda step: counts.append(len(step.branches)))
        try:
            pool.add(job)
            while not job.done:
                pool.step()
            job.handle.result()  # raises the request's error
        finally:
            pool.close()
    usual = statistics.median_high(counts)
    return statistics.median(rounds.outside[number] for number, count in enumerate(counts) if count == usual), usual


class _Rounds:
    """Observer that records the seconds of each round outside its forward."""

    def __init__(self) -> None:
        self.outside: list[float] = []

    def round_ended(self, report: RoundReport) -> None:
        self.outside.append(report.seconds_outside)

    def request_admitted(self, report: AdmissionReport) -> None:
        """Ignore the event."""

    def request_ended(self, report: EndReport) -> None:
        """Ignore the event."""


@contextmanager
def _random_prefixes(decoder: Decoder, lengths: Sequence[int], rng: np.random.Generator) -> Iterator[dict[int, int]]:
    """Return a context with one request per prefix length: request numbers by length.

    The numbers are negative, so they differ from the decoder's.
    """
    requests, session = {length: -1 - number for number, length in enumerate(lengths)}, TypedSession(decoder.session)
    try:
        for length, request in requests.items():
            session.append_rows(request, random_prefix_rows(decoder.bundle.manifest, length, rng))
        yield requests
    finally:
        for request in requests.values():
            session.free(request)


def _forward_seconds(decoder: Decoder, request: int, shape: ForwardShape, rng: np.random.Generator) -> float:
    """Return the seconds of one forward. A short forward is repeated, since most forwards of a decode follow a similar
    one."""
    first = _seconds_of_one(decoder, request, shape, rng)
    return _seconds_of_one(decoder, request, shape, rng) if first < _SHORT else first


def _seconds_of_one(decoder: Decoder, request: int, shape: ForwardShape, rng: np.random.Generator) -> float:
    batch = random_window(decoder.bundle.manifest, request, shape, rng)
    session = SequentialSession(TypedSession(decoder.session))
    began = time.perf_counter()
    try:
        session.run(batch)
        return time.perf_counter() - began
    finally:
        session.release()


def _seconds_a_row(decoder: Decoder, shape: ForwardShape) -> float:
    """Return the seconds per row of a warm forward of `shape`."""
    rng = np.random.default_rng(0)
    with _random_prefixes(decoder, [shape.prefix], rng) as requests:
        _forward_seconds(decoder, requests[shape.prefix], shape, rng)
        return _forward_seconds(decoder, requests[shape.prefix], shape, rng) / (shape.branches * shape.window)


def table_from_costs(costs: DeviceCosts) -> Table:
    """Return a table of all points."""
    used = "the engine's default threads" if costs.threads is None else f"{costs.threads} thread(s)"
    return table_from_records(
        f"Milliseconds of a forward that samples all positions: {costs.device}, {used}, {costs.machine}; "
        f"host time per step {costs.host_seconds * 1e3:.2f} ms + {costs.host_seconds_a_branch * 1e3:.2f} ms per "
        "further branch",
        costs.points,
        {
            "branches x window, prefix": lambda point: f"{point.branches} x {point.window}, {point.prefix}",
            "median": lambda point: ms_text(point.seconds),
        },
    )
