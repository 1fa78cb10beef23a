"""Measures how a decode scales over CPU cores, and the costs from which the model projects more devices.

Numbers of devices take turns, prompt by prompt, since a machine may be busy with other work for a while. The first
number is always 1: the model replays the steps of one device.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np

from lopa.bench.decoded_steps import result_with_steps
from lopa.bench.eval_set import EvalItem
from lopa.bench.forward.costs import (
    Grid,
    Schedule,
    costs_from_seconds,
    random_prefixes,
    shapes_of_grid,
    timed_forwards,
)
from lopa.bench.forward.random_inputs import random_window
from lopa.bench.forward.work import ForwardShape
from lopa.bench.progress import Progress, silent
from lopa.bench.scaling.model import EngineTable, RecordedStep, StepParts, device_shape
from lopa.bench.scaling.report import Decode, ShareCost, Turn
from lopa.bench.turns import in_turns
from lopa.runtime.bundle.costs import CostTable
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import tiles
from lopa.runtime.contract.batch_parts import rows_are_shared
from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.decoding import Step
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.state.batch import batch_from_windows

ROUNDS = 3
"""How often each prompt is decoded on each number of devices."""
_TABLE_ROUNDS = 7
SHARE_ROUNDS = 25
"""How often each share is timed."""
_MOST_PREFIXES = 3


def measured_turns(
    decoders: Mapping[int, Decoder],
    items: Sequence[EvalItem],
    config: GenerationConfig,
    progress: Progress = silent,
) -> dict[int, list[Turn]]:
    """Decode `items` ROUNDS times with each decoder, by its number of devices; one list of turns for each.

    `progress` hears how many turns are done.
    """
    for decoder in decoders.values():
        _decoded(decoder, items[0], config)  # the first pays for memory that all others find ready

    def side(decoder: Decoder) -> Callable[[int], Turn]:
        return lambda turn: _decoded(decoder, items[turn % len(items)], config)

    return in_turns({devices: side(each) for devices, each in decoders.items()}, ROUNDS * len(items), progress)


def recorded_step(step: Step) -> RecordedStep:
    """What the model needs of a step of a session over devices; one device named as a core is such a session."""
    windows, seconds, split = step.windows, step.seconds, step.split
    if split is None:
        raise ValueError("received a step of a session without a split, expected devices that are named as cores")
    engine = max(device.seconds for device in split.devices)
    shared = windows.commit > 0 and rows_are_shared(batch_from_windows([windows], [0], [1.0]), 0, windows.commit)
    return RecordedStep(
        shape=ForwardShape(len(step.branches), max(windows.lengths), tiles(windows.prefix), windows.wanted.shape[1]),
        committed=windows.commit,
        shared=shared,
        parts=StepParts(
            windows=seconds["windows"],
            engine=engine,
            gather=seconds["forward"] - engine,
            select=seconds["select"],
            commit=seconds["commit"],
            spawn=seconds["spawn"],
        ),
    )


def schedule_of_decodes(decodes: Sequence[Decode], counts: Sequence[int], manifest: Manifest) -> Schedule:
    """The forwards that a cost table for these decodes on `counts` devices needs: every row wanted, and one row.

    Windows are those of steps with several branches; the table goes on in proportion to the longer one of a prompt.
    """
    shapes = [step.shape for decode in decodes for step in decode]
    most = max(shape.branches for shape in shapes)
    rows = max(shape.window for shape in shapes if shape.branches > 1 or most == 1)
    seen = sorted({shape.prefix for shape in shapes})
    prefixes = {seen[round(i * (len(seen) - 1) / (_MOST_PREFIXES - 1))] for i in range(_MOST_PREFIXES)}
    grid = Grid(
        branches=tuple(sorted({1, *(device_shape(ForwardShape(most, 1, 1, 1), count).branches for count in counts)})),
        blocks=tuple(range(1, -(-rows // manifest.decoding.block_size) + 1)),
        prefixes=tuple(sorted(prefixes)),
    )
    every = shapes_of_grid(grid, manifest)
    return Schedule((*every, *(replace(shape, wanted=1) for shape in every)), _TABLE_ROUNDS)


def measured_table(decoder: Decoder, schedule: Schedule, progress: Progress = silent) -> EngineTable:
    """Time the forwards of `schedule` on one core; `decoder` was opened on the CPU with one thread."""
    seconds = timed_forwards(decoder, schedule, progress)

    def table(chosen: Callable[[ForwardShape], bool]) -> CostTable:
        some = {shape: found for shape, found in seconds.items() if chosen(shape)}
        return CostTable(costs_from_seconds(decoder, some, threads=1, host=(0.0, 0.0)))

    return EngineTable(
        every_row=table(lambda shape: shape.wanted == shape.window), one_row=table(lambda shape: shape.wanted == 1)
    )


def measured_shares(
    decoders: Mapping[int, Decoder],
    counts: Sequence[int],
    shape: ForwardShape,
    progress: Progress = silent,
) -> tuple[ShareCost, ...]:
    """The engine at the share of `shape` that the fullest of `counts` devices gets, alone and with all of them busy.

    Both in turns. The devices that compute together have as many branches each.
    """
    rng = np.random.default_rng(0)
    alone: dict[int, list[float]] = {count: [] for count in counts}
    together: dict[int, list[float]] = {count: [] for count in counts if count in decoders and count > 1}
    with ExitStack() as stack:
        requests = {
            count: stack.enter_context(random_prefixes(decoder, [shape.prefix], rng))[shape.prefix]
            for count, decoder in decoders.items()
        }
        for done in range(1, SHARE_ROUNDS + 1):
            for count in counts:
                share = device_shape(shape, count)
                alone[count].append(_engine_seconds(decoders[1], requests[1], share, rng))
                if count in together:
                    whole = replace(share, branches=share.branches * count)
                    together[count].append(_engine_seconds(decoders[count], requests[count], whole, rng))
            progress(done)
    return tuple(
        ShareCost(
            devices=count,
            branches=device_shape(shape, count).branches,
            window=shape.window,
            prefix=shape.prefix,
            wanted=shape.wanted,
            alone=statistics.median(alone[count]),
            together=statistics.median(together[count]) if count in together else None,
        )
        for count in counts
    )


def slowdowns_from_shares(shares: Sequence[ShareCost]) -> dict[int, float]:
    """How many times longer a forward takes while all devices compute, by their number."""
    return {share.devices: share.together / share.alone for share in shares if share.together is not None}


def _engine_seconds(decoder: Decoder, request: int, shape: ForwardShape, rng: np.random.Generator) -> float:
    """Of the slowest device."""
    split = decoder.session.forward(random_window(decoder.bundle.manifest, request, shape, rng)).split
    assert split is not None
    return max(device.seconds for device in split.devices)


def _decoded(decoder: Decoder, item: EvalItem, config: GenerationConfig) -> Turn:
    result, steps = result_with_steps(decoder, item.prompt, config)
    return Turn(result.token_ids, tuple(map(recorded_step, steps)))
