"""Measures the cost table of a bundle on a device: what a forward costs by branches, window and prefix.

The shapes of a round come in random order, so that a machine that slows down slows no part of the table more than
another. Does not know what the table is used for.
"""

import itertools
import math
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from lopa.bench.eval_set import eval_set_from_jsonl
from lopa.bench.forward.random_inputs import random_prefix_rows, random_window
from lopa.bench.forward.work import ForwardShape
from lopa.bench.machine import date_now, machine_now
from lopa.bench.progress import Progress, silent
from lopa.runtime.bundle.costs import COSTS_SCHEMA, Costs, ForwardCost
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import CONTRACT_VERSION
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError
from lopa.runtime.plan import MAX_AUTO_BRANCHES
from lopa.runtime.requests.observer import AdmissionReport, EndReport, RoundReport
from lopa.tiny import EVAL

BUDGET = 600.0
"""Seconds that the least rounds may take: a slower model gets a coarser grid."""
ENOUGH = 40.0
"""Seconds after which a table with its least rounds will do: one of a small model takes under a minute."""
MIN_ROUNDS, _MAX_ROUNDS = 3, 25
"""Of which the medians are taken."""
_SHORT = 0.05
"""Seconds of a forward that another of its sizes right before makes faster by a share that counts."""
_HOST_PROMPTS = 4
_HOST_SECONDS = 10.0
"""A prompt may take so long: the host's share is small in a slow model, and need not be known well."""


@dataclass(frozen=True)
class Grid:
    """The points of a table: all combinations. `blocks` are window sizes in blocks."""

    branches: tuple[int, ...]
    blocks: tuple[int, ...]
    prefixes: tuple[int, ...]


GRIDS = (
    Grid((1, 2, 3, 4, 6, 8), (1, 2, 3, 4), (64, 128, 256, 512, 1024, 2048)),
    Grid((1, 2, 3, 4, 6, 8), (1, 2, 3, 4), (64, 256, 1024)),
    Grid((1, 2, 4, 8), (1, 2, 4), (64, 512)),
    Grid((1, 4, 8), (1, 4), (64, 512)),
)
"""Finest first."""

Seconds = dict[ForwardShape, list[float]]
"""Of every forward of a shape."""


@dataclass(frozen=True)
class Schedule:
    """What will be timed: every shape once a round."""

    shapes: tuple[ForwardShape, ...]
    rounds: int
    """At most."""
    enough: float = math.inf
    """Seconds after which no further round begins, once there are MIN_ROUNDS."""

    @property
    def forwards(self) -> int:
        """Timed forwards in all, if there is time for every round."""
        return self.rounds * len(self.shapes)

    def rounds_in(self, seconds_a_forward: float) -> int:
        """How many rounds there will be at this speed."""
        in_time = self.enough / (seconds_a_forward * len(self.shapes))
        return int(min(max(in_time, MIN_ROUNDS), self.rounds))


def schedule_for_decoder(decoder: Decoder, budget: float = BUDGET) -> Schedule:
    """The finest grid of which MIN_ROUNDS rounds fit in about `budget` seconds, by the time of one large forward.

    The coarsest where none fits. Raises BadInputError for a model with too few positions.
    """
    manifest = decoder.bundle.manifest
    seconds_a_row = _seconds_a_row(decoder, shapes_of_grid(GRIDS[-1], manifest)[-1])
    for grid in GRIDS:
        shapes = shapes_of_grid(grid, manifest)
        seconds_a_round = seconds_a_row * sum(shape.branches * shape.window for shape in shapes)
        if MIN_ROUNDS * seconds_a_round <= budget:
            break
    return Schedule(tuple(shapes), _MAX_ROUNDS, ENOUGH)


class CostMeasurement:
    """The measuring of a table of `decoder`'s session, which was opened with `threads`.

    It can be stopped by any exception: then `costs` is the table of what was measured, if that is enough for one.
    """

    def __init__(self, decoder: Decoder, schedule: Schedule, *, threads: int | None) -> None:
        self.schedule = schedule
        self._decoder = decoder
        self._threads = threads
        self._host: tuple[float, float] | None = None
        self._seconds: Seconds = {}

    def run(self, progress: Progress = silent) -> None:
        """Measure. `progress` hears how many forwards are done, and how many there will be, which the speed decides."""
        self._host = host_cost(self._decoder)
        timed_forwards(self._decoder, self.schedule, progress, self._seconds)

    @property
    def forwards(self) -> int:
        """Timed so far."""
        return sum(map(len, self._seconds.values()))

    @property
    def costs(self) -> Costs | None:
        """The table, once every shape was timed MIN_ROUNDS times, or as often as the schedule has it."""
        rounds = min(MIN_ROUNDS, self.schedule.rounds)
        if self._host is None or any(len(self._seconds.get(shape, ())) < rounds for shape in self.schedule.shapes):
            return None
        host_seconds, host_seconds_a_branch = self._host
        return Costs(
            schema=COSTS_SCHEMA,
            contract=CONTRACT_VERSION,
            device=self._decoder.session.device,
            machine=machine_now().cpu,
            threads=self._threads,
            weights_sha256=self._decoder.bundle.manifest.weights_digest,
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
                for shape, found in self._seconds.items()
            ],
        )


def shapes_of_grid(grid: Grid, manifest: Manifest) -> list[ForwardShape]:
    """The shapes of `grid` whose positions the model has, largest last; every row is wanted."""
    block = manifest.decoding.block_size
    longest = manifest.dimensions.max_positions - block * max(grid.blocks)
    prefixes = [prefix for prefix in grid.prefixes if prefix <= longest]
    if not prefixes:
        raise BadInputError(
            f"a model of {manifest.dimensions.max_positions} positions",
            expected=f"at least {min(grid.prefixes) + block * max(grid.blocks)}, the smallest prefix and {grid.blocks}"
            f" blocks of {block}",
            remedy="choose the number of branches yourself",
        )
    return [
        ForwardShape(branches, blocks * block, prefix, wanted=blocks * block)
        for prefix, branches, blocks in itertools.product(prefixes, grid.branches, grid.blocks)
    ]


def timed_forwards(
    decoder: Decoder, schedule: Schedule, progress: Progress = silent, seconds: Seconds | None = None
) -> Seconds:
    """Seconds of session.forward for every shape, once a round; put into `seconds`, if given, as they come."""
    rng, order = np.random.default_rng(0), random.Random(0)
    seconds = {} if seconds is None else seconds
    seconds.update({shape: [] for shape in schedule.shapes})
    began, done, rounds = time.perf_counter(), 0, 0
    with random_prefixes(decoder, sorted({shape.prefix for shape in schedule.shapes}), rng) as requests:
        while done == 0 or rounds < schedule.rounds_in((time.perf_counter() - began) / done):
            rounds += 1
            for prefix in order.sample(sorted(requests), len(requests)):
                chosen = [shape for shape in schedule.shapes if shape.prefix == prefix]
                # The first forward on another prefix also binds it, which a decode does once in many steps.
                _forward_seconds(decoder, requests[prefix], min(chosen, key=lambda s: s.branches * s.window), rng)
                for shape in order.sample(chosen, len(chosen)):
                    seconds[shape].append(_forward_seconds(decoder, requests[prefix], shape, rng))
                    done += 1
                    progress(done, len(schedule.shapes) * schedule.rounds_in((time.perf_counter() - began) / done))
    return seconds


def host_cost(decoder: Decoder) -> tuple[float, float]:
    """Median seconds of a round of one request outside the session's forward with one branch, and what every further
    branch adds: windows and their packing, choices, text and events. An engine's and a server's threads come on top."""
    one, _ = _host_rounds(decoder, 1)
    many, branches = _host_rounds(decoder, MAX_AUTO_BRANCHES)
    further = branches - 1
    return one, max(0.0, (many - one) / further) if further else 0.0


def _host_rounds(decoder: Decoder, branches: int) -> tuple[float, float]:
    """Medians over rounds of the first embedded prompts: seconds outside the forward, and the number of branches.

    Rounds that had fewer than the others, as the first of a request, are left out.
    """
    config = decoder.config(strategy="lopa", branches=branches, time_limit=_HOST_SECONDS)
    rounds, counts = _Rounds(), list[int]()
    for item in eval_set_from_jsonl(EVAL, limit=_HOST_PROMPTS):
        pool = decoder._pool(prompt_rows=0, observer=rounds)
        job = decoder._job(item.prompt, config, on_step=lambda step: counts.append(len(step.branches)))
        try:
            pool.add(job)
            while not job.done:
                pool.step()
            job.handle.result()  # raises what made it fail
        finally:
            pool.close()
    upper = statistics.median_high(counts)
    return statistics.median(rounds.outside[number] for number, count in enumerate(counts) if count == upper), upper


class _Rounds:
    """An observer that keeps the seconds of every round outside its forward."""

    def __init__(self) -> None:
        self.outside: list[float] = []

    def round_ended(self, report: RoundReport) -> None:
        self.outside.append(report.seconds_outside)

    def request_admitted(self, report: AdmissionReport) -> None:
        """Not counted."""

    def request_ended(self, report: EndReport) -> None:
        """Not counted."""


@contextmanager
def random_prefixes(decoder: Decoder, lengths: Sequence[int], rng: np.random.Generator) -> Iterator[dict[int, int]]:
    """A request with a random prefix of every length: request numbers (negative, so not the decoder's) by length."""
    requests = {length: -1 - number for number, length in enumerate(lengths)}
    try:
        for length, request in requests.items():
            decoder.session.append_rows(request, random_prefix_rows(decoder.bundle.manifest, length, rng))
        yield requests
    finally:
        for request in requests.values():
            decoder.session.release(request)


def _forward_seconds(decoder: Decoder, request: int, shape: ForwardShape, rng: np.random.Generator) -> float:
    """Return the seconds of one forward; a short one follows another of its kind, as most do in a decode."""
    first = _seconds_of_one(decoder, request, shape, rng)
    return _seconds_of_one(decoder, request, shape, rng) if first < _SHORT else first


def _seconds_of_one(decoder: Decoder, request: int, shape: ForwardShape, rng: np.random.Generator) -> float:
    batch = random_window(decoder.bundle.manifest, request, shape, rng)
    began = time.perf_counter()
    decoder.session.forward(batch)
    return time.perf_counter() - began


def _seconds_a_row(decoder: Decoder, shape: ForwardShape) -> float:
    """Return the seconds of a row in a forward of `shape`, once its memory is there."""
    rng = np.random.default_rng(0)
    with random_prefixes(decoder, [shape.prefix], rng) as requests:
        _forward_seconds(decoder, requests[shape.prefix], shape, rng)
        return _forward_seconds(decoder, requests[shape.prefix], shape, rng) / (shape.branches * shape.window)
