"""Measure the scaling of a decode over CPU cores, and the costs for projecting it to more devices.

Numbers of devices alternate prompt by prompt, so that a busy phase of the machine affects all of them. The first number
is always 1, since the model replays the steps of one device.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lopa.bench.decoded_steps import result_with_steps
from lopa.bench.eval_set import EvalItem
from lopa.bench.forward.cost_measurement import random_prefixes
from lopa.bench.forward.random_inputs import random_window
from lopa.bench.forward.work import ForwardShape
from lopa.bench.progress import BenchProgress, silent
from lopa.bench.scaling.scaling_model import Decode, ReplayStep, ShareCost, StepParts, device_shape
from lopa.bench.turns import run_in_turns
from lopa.runtime.contract import tiles
from lopa.runtime.contract.batch_parts import rows_are_shared
from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.decoding import Step
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.sessions.onnxruntime_graph import available_cores
from lopa.runtime.state.batch import batch_from_windows

ROUNDS = 3
"""Decodes of each prompt with each number of devices."""
SHARE_ROUNDS = 25
"""Forwards of each share."""


@dataclass(frozen=True)
class Turn:
    """One prompt decoded once with a number of devices."""

    ids: tuple[int, ...]
    """Token ids of the result."""
    steps: Decode


def decoders_on_cores(
    opened: ExitStack, path: Path, counts: Sequence[int], *, device_timeout: float
) -> dict[int, Decoder]:
    """Open the bundle at `path` on 1 device and on each number in `counts` up to this machine's cores.

    A device is a core. `opened` closes the decoders. Raises the errors of Decoder.open.
    """
    cores = sorted(available_cores())
    return {
        count: opened.enter_context(
            Decoder.open(path, [f"cpu:{core}" for core in cores[:count]], device_timeout=device_timeout)
        )
        for count in sorted({1, *counts})
        if count <= len(cores)
    }


def measure_turns(
    decoders: Mapping[int, Decoder],
    items: Sequence[EvalItem],
    config: GenerationConfig,
    progress: BenchProgress = silent,
) -> dict[int, list[Turn]]:
    """Decode `items` ROUNDS times with each decoder. Return the turns by number of devices.

    `progress` receives the number of finished turns.
    """
    for decoder in decoders.values():
        _decode(decoder, items[0], config)  # warm-up: allocates memory

    def side(decoder: Decoder) -> Callable[[int], Turn]:
        return lambda turn: _decode(decoder, items[turn % len(items)], config)

    return run_in_turns({devices: side(each) for devices, each in decoders.items()}, ROUNDS * len(items), progress)


def recorded_step(step: Step) -> ReplayStep:
    """Return the data that the model needs from a step of a session whose devices are named after cores."""
    windows, seconds, split = step.windows, step.seconds, step.split
    if split is None:
        raise ValueError("received a step of a session without a split, expected devices named as cores")
    engine = max(device.seconds for device in split.devices)
    shared = windows.commit > 0 and rows_are_shared(batch_from_windows([windows], [0], [1.0]), 0, windows.commit)
    return ReplayStep(
        shape=ForwardShape(
            len(step.branches), max(windows.lengths), tiles(windows.prefix), windows.logits_positions.shape[1]
        ),
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


def measure_shares(
    decoders: Mapping[int, Decoder],
    counts: Sequence[int],
    shape: ForwardShape,
    progress: BenchProgress = silent,
) -> tuple[ShareCost, ...]:
    """Time the largest share of `shape` for each of `counts` devices, alone and with all devices busy, in alternation.

    A single branch is always among the shares. Devices that compute together have equal numbers of branches.
    """
    rng = np.random.default_rng(0)
    shares = {count: device_shape(shape, count) for count in sorted({*counts, shape.branches})}

    def engine_seconds(devices: int, branches: int) -> float:
        """Return the seconds of the slowest device."""
        decoder = decoders[devices]
        window = random_window(decoder.bundle.manifest, requests[devices], replace(shape, branches=branches), rng)
        split = decoder.session.forward(window).split
        assert split is not None
        return max(device.seconds for device in split.devices)

    def sides(count: int, branches: int) -> dict[tuple[int, bool], Callable[[int], float]]:
        """Return the timings by number of devices, for one device alone and for all together."""
        alone = {(count, False): lambda _: engine_seconds(1, branches)}
        together = {(count, True): lambda _: engine_seconds(count, branches * count)}
        return alone | together if count > 1 and count in decoders else alone

    with ExitStack() as stack:
        requests = {
            count: stack.enter_context(random_prefixes(decoder, [shape.prefix], rng))[shape.prefix]
            for count, decoder in decoders.items()
        }
        timed: dict[tuple[int, bool], Callable[[int], float]] = {}
        for count, share in shares.items():
            timed |= sides(count, share.branches)
        found = {side: statistics.median(each) for side, each in run_in_turns(timed, SHARE_ROUNDS, progress).items()}
    return tuple(
        ShareCost(
            devices=count,
            branches=share.branches,
            window=share.window,
            prefix=share.prefix,
            wanted=share.wanted,
            alone=found[count, False],
            together=found.get((count, True)),
        )
        for count, share in shares.items()
    )


def _decode(decoder: Decoder, item: EvalItem, config: GenerationConfig) -> Turn:
    result, steps = result_with_steps(decoder, item.prompt, config)
    return Turn(result.token_ids, tuple(map(recorded_step, steps)))
