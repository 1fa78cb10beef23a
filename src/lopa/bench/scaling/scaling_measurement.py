"""Measure the scaling of a decode over CPU cores.

Numbers of devices alternate prompt by prompt, so that a busy phase of the machine affects all of them.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from lopa.bench.decoded_steps import result_with_steps
from lopa.bench.eval_set import EvalItem
from lopa.bench.forward.work import ForwardShape
from lopa.bench.progress import BenchProgress, silent
from lopa.bench.turns import run_in_turns
from lopa.runtime.contract import tiles
from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.step import Step
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.sessions.onnxruntime_graph import available_cores

ROUNDS = 3
"""Decodes of each prompt with each number of devices."""


@dataclass(frozen=True)
class StepParts:
    """Seconds of the parts of one step, which add up to the step."""

    windows: float
    engine: float
    """Seconds of the slowest device."""
    gather: float
    """Seconds of the forward outside the engine."""
    select: float
    commit: float
    spawn: float

    @property
    def host(self) -> float:
        """Seconds of building windows and branches."""
        return self.windows + self.spawn

    @property
    def seconds(self) -> float:
        """Seconds of the whole step."""
        return self.windows + self.engine + self.gather + self.select + self.commit + self.spawn


@dataclass(frozen=True)
class TimedStep:
    """One step of a decode."""

    shape: ForwardShape
    """Shape of its forward, all branches."""
    parts: StepParts


Decode = tuple[TimedStep, ...]


@dataclass(frozen=True)
class Turn:
    """One prompt decoded once with a number of devices."""

    ids: tuple[int, ...]
    """Token ids of the result."""
    steps: Decode


def decoders_on_cores(
    opened: ExitStack, path: Path, counts: Sequence[int], *, device_timeout: float
) -> dict[int, Decoder]:
    """Open the bundle at `path` on 1 device, the base of the speed-up, and on each number in `counts`.

    A device is a core. `opened` closes the decoders. Raises BadInputError for more devices than this process has cores,
    and the errors of Decoder.open.
    """
    cores = sorted(available_cores())
    if max(counts) > len(cores):
        raise BadInputError(
            f"--devices with {max(counts)} devices",
            expected=f"at most {len(cores)}, the cores that this process may use; each device is one core",
            remedy="lower --devices, or measure on a machine with more cores",
        )
    return {
        count: opened.enter_context(
            Decoder.open(path, [f"cpu:{core}" for core in cores[:count]], device_timeout=device_timeout)
        )
        for count in sorted({1, *counts})
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


def timed_step(step: Step) -> TimedStep:
    """Return the shape and the seconds of a step of a session whose devices are named after cores."""
    rows, seconds, split = step.rows, step.seconds, step.split
    if split is None:
        raise ValueError("received a step of a session without a split, expected devices named as cores")
    engine = max(device.seconds for device in split.devices)
    return TimedStep(
        shape=ForwardShape(
            len(step.branches), max(rows.branch_lengths), tiles(rows.prefix), max(1, *rows.sampled_per_branch)
        ),
        parts=StepParts(
            windows=seconds["windows"],
            engine=engine,
            gather=seconds["forward"] - engine,
            select=seconds["select"],
            commit=seconds["commit"],
            spawn=seconds["spawn"],
        ),
    )


def _decode(decoder: Decoder, item: EvalItem, config: GenerationConfig) -> Turn:
    result, steps = result_with_steps(decoder, item.prompt, config)
    return Turn(result.token_ids, tuple(map(timed_step, steps)))
