"""Scaling of one request over several CPU cores: steps and tokens per second by number of devices.

Numbers of devices alternate prompt by prompt, so that a busy phase of the machine affects all of them.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lopa.bench.eval_set import EvalItem
from lopa.bench.forward.work import ForwardShape
from lopa.bench.progress import BenchProgress, silent
from lopa.bench.report import PromptFile, Run
from lopa.bench.table import Table, ms_text, ratio_text
from lopa.bench.turns import result_with_steps, run_in_turns
from lopa.runtime.contract import tiles
from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.step import Step
from lopa.runtime.errors import BadInputError, CheckFailedError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.sessions.onnxruntime_graph import available_cores

ROUNDS = 3
"""Decodes of each prompt with each number of devices."""
Parts = dict[str, float]
"""Seconds of the parts of a step, which add up to the step.

`engine` is the slowest device, and `gather` the forward outside it. `host` builds windows and branches.
"""


@dataclass(frozen=True)
class Turn:
    """One prompt decoded once with a number of devices."""

    ids: tuple[int, ...]
    """Token ids of the result."""
    shapes: tuple[ForwardShape, ...]
    """Shape of each step's forward, all branches."""
    steps: tuple[Parts, ...]

    @property
    def seconds(self) -> float:
        """Seconds of all steps."""
        return sum(sum(parts.values()) for parts in self.steps)


@dataclass(frozen=True)
class MeasuredScale:
    """Decodes with one number of devices."""

    devices: int
    tokens_per_second: float
    """Tokens divided by the sum over the prompts of the median seconds."""
    step: float
    """Median seconds per step."""
    parts: Parts
    """Medians of each part. They do not add up to the median of the sum."""


@dataclass(frozen=True)
class ScalingReport:
    """Report of `lopa-export bench scaling`."""

    benchmark: str
    run: Run
    prompts: PromptFile
    settings: dict[str, Any]
    rounds: int
    """Decodes of each prompt with each number of devices."""
    decodes: int
    """Number of compared prompts."""
    steps: int
    """Total steps of these prompts."""
    other_tokens: tuple[int, ...]
    """Indices of excluded prompts, whose tokens or steps depend on the number of devices."""
    measured: tuple[MeasuredScale, ...]


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

    def side(decoder: Decoder) -> Callable[[int], Turn]:
        result_with_steps(decoder, items[0].prompt, config)  # warm-up: allocates memory
        return lambda turn: _decode(decoder, items[turn % len(items)], config)

    return run_in_turns({devices: side(each) for devices, each in decoders.items()}, ROUNDS * len(items), progress)


def scaling_report(
    turns: Mapping[int, Sequence[Turn]], run: Run, prompts: PromptFile, settings: Mapping[str, Any]
) -> ScalingReport:
    """Return the report of the turns from `measure_turns`.

    Raises CheckFailedError if no prompt decodes equally on all numbers of devices.
    """
    count = len(turns[1]) // ROUNDS
    of_prompts = {devices: [own[index::count] for index in range(count)] for devices, own in turns.items()}
    decoded = [
        {(turn.ids, turn.shapes) for own in of_prompts.values() for turn in own[index]} for index in range(count)
    ]
    same = [index for index in range(count) if len(decoded[index]) == 1]
    if not same:
        raise CheckFailedError(
            f"{run.bundle} decodes every prompt differently on some of {', '.join(map(str, sorted(turns)))} devices",
            expected="equal tokens on every number of devices for at least one prompt",
            remedy="run lopa-export verify to check the engine, and report the problem with the bundle's manifest.json",
        )
    return ScalingReport(
        benchmark="scaling",
        run=run,
        prompts=prompts,
        settings=dict(settings),
        rounds=ROUNDS,
        decodes=len(same),
        steps=sum(len(turns[1][index].steps) for index in same),
        other_tokens=tuple(index for index in range(count) if index not in same),
        measured=tuple(_scale(devices, [of_prompts[devices][index] for index in same]) for devices in sorted(turns)),
    )


def parts_of_step(step: Step) -> Parts:
    """Return the seconds of the parts of a step of a session whose devices are named after cores."""
    if step.split is None:
        raise ValueError("received a step of a session without a split, expected devices named as cores")
    seconds, engine = step.seconds, max(device.seconds for device in step.split.devices)
    return {
        "engine": engine,
        "gather": seconds["forward"] - engine,
        "select": seconds["select"],
        "commit": seconds["commit"],
        "host": seconds["windows"] + seconds["spawn"],
    }


def table_from_scaling(report: ScalingReport) -> Table:
    """Return a table with one row per number of devices."""
    tokens = "same tokens on all numbers of devices"
    if report.other_tokens:
        tokens = f"DIFFERENT TOKENS for prompts {list(report.other_tokens)}, which are excluded"
    single = report.measured[0].tokens_per_second
    return Table(
        f"Milliseconds per step, medians; {report.settings['branches']} branches, {report.decodes} prompts of "
        f"{report.steps} steps x {report.rounds} alternating rounds, one core per device, {report.run.machine.cpu}; "
        f"{tokens}",
        ("devices", "step", *report.measured[0].parts, "tokens/s", "speed-up"),
        tuple(
            (
                str(each.devices),
                *map(ms_text, (each.step, *each.parts.values())),
                f"{each.tokens_per_second:.0f}",
                ratio_text(each.tokens_per_second, single),
            )
            for each in report.measured
        ),
    )


def _scale(devices: int, prompts: Sequence[Sequence[Turn]]) -> MeasuredScale:
    """Return the figures of the turns of each prompt."""
    steps = [parts for turns in prompts for turn in turns for parts in turn.steps]
    seconds = sum(statistics.median(turn.seconds for turn in turns) for turns in prompts)
    return MeasuredScale(
        devices,
        sum(len(turns[0].ids) for turns in prompts) / seconds,
        statistics.median(sum(parts.values()) for parts in steps),
        {name: statistics.median(parts[name] for parts in steps) for name in steps[0]},
    )


def _decode(decoder: Decoder, item: EvalItem, config: GenerationConfig) -> Turn:
    result, steps = result_with_steps(decoder, item.prompt, config)
    shapes = tuple(
        ForwardShape(
            len(step.branches),
            max(step.rows.branch_lengths),
            tiles(step.rows.prefix),
            max(1, *step.rows.sampled_per_branch),
        )
        for step in steps
    )
    return Turn(result.token_ids, shapes, tuple(map(parts_of_step, steps)))
