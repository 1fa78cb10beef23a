"""Scaling report: steps and tokens per second by number of devices, and its table."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

from lopa.bench.eval_set import EvalItem
from lopa.bench.forward.work import ForwardShape
from lopa.bench.progress import show_progress
from lopa.bench.report import PromptFile, Run, run_now
from lopa.bench.scaling.scaling_measurement import ROUNDS, Decode, StepParts, Turn, measure_turns
from lopa.bench.table import Table, ms_text, ratio_text, table_from_records
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import CheckFailedError
from lopa.runtime.generation_config import GenerationConfig


@dataclass(frozen=True)
class MeasuredScale:
    """Decodes with one number of devices."""

    devices: int
    tokens_per_second: float
    step: float
    """Median seconds per step."""
    parts: StepParts
    """Medians of each part. They do not add up to the median of the sum."""


@dataclass(frozen=True)
class ScalingReport:
    """Report of `lopa-export bench scaling`."""

    benchmark: str
    run: Run
    prompts: PromptFile
    settings: dict[str, Any]
    rounds: int
    """Decodes of each prompt with each number of devices. A step's seconds are their median."""
    decodes: int
    """Number of compared prompts."""
    steps: int
    """Total steps of these prompts."""
    other_tokens: tuple[int, ...]
    """Indices of excluded prompts, whose tokens or steps depend on the number of devices."""
    measured: tuple[MeasuredScale, ...]


def scaling_report(
    decoders: Mapping[int, Decoder],
    config: GenerationConfig,
    items: Sequence[EvalItem],
    prompts: PromptFile,
    *,
    arguments: Sequence[str],
    quiet: bool = False,
) -> ScalingReport:
    """Measure the `decoders` from `decoders_on_cores`; `quiet` hides the progress.

    Raises CheckFailedError if no prompt decodes equally on all of them.
    """
    one, counts = decoders[1], sorted(decoders)
    run = run_now(one.bundle, device=decoders[counts[-1]].session.device, threads=1, arguments=arguments)
    with show_progress("prompts on every number of devices", ROUNDS * len(items), quiet=quiet) as progress:
        turns = measure_turns(decoders, items, config, progress)
    other = prompts_with_other_tokens(turns, len(items))
    if len(other) == len(items):
        raise CheckFailedError(
            f"{run.bundle} decodes every prompt differently on some of {', '.join(map(str, counts))} devices",
            expected="equal tokens on every number of devices for at least one prompt",
            remedy="run lopa-export verify to check the engine, and report the problem with the bundle's manifest.json",
        )
    decodes = {count: typical_decodes(turns[count], len(items), other) for count in counts}
    tokens = sum(len(turn.ids) for index, turn in enumerate(turns[1][: len(items)]) if index not in other)
    return ScalingReport(
        benchmark="scaling",
        run=run,
        prompts=prompts,
        settings=dict(one.resolve(config).options),
        rounds=ROUNDS,
        decodes=len(decodes[1]),
        steps=sum(map(len, decodes[1])),
        other_tokens=other,
        measured=tuple(scale_from_decodes(count, decodes[count], tokens) for count in counts),
    )


def prompts_with_other_tokens(turns: Mapping[int, Sequence[Turn]], prompts: int) -> tuple[int, ...]:
    """Return the indices of prompts that were not decoded equally in every turn and with every number of devices."""
    found = [set[tuple[tuple[int, ...], tuple[ForwardShape, ...]]]() for _ in range(prompts)]
    for each in turns.values():
        for number, turn in enumerate(each):
            found[number % prompts].add((turn.ids, tuple(step.shape for step in turn.steps)))
    return tuple(index for index, decoded in enumerate(found) if len(decoded) > 1)


def typical_decodes(turns: Sequence[Turn], prompts: int, excluded: Sequence[int] = ()) -> list[Decode]:
    """Return one decode per prompt, with medians over its turns step by step. Turns cycle through the prompts."""
    return [
        tuple(
            replace(same[0], parts=_median_parts([step.parts for step in same]))
            for same in zip(*(turn.steps for turn in turns[index::prompts]), strict=True)
        )
        for index in range(prompts)
        if index not in excluded
    ]


def scale_from_decodes(devices: int, decodes: Sequence[Decode], tokens: int) -> MeasuredScale:
    """Return the figures of `decodes` with `tokens` tokens in total, measured on `devices` devices."""
    steps = [step.parts for decode in decodes for step in decode]
    seconds = [step.seconds for step in steps]
    return MeasuredScale(devices, tokens / sum(seconds), statistics.median(seconds), _median_parts(steps))


def table_from_scaling(report: ScalingReport) -> Table:
    """Return a table with one row per number of devices."""
    tokens = "same tokens on all numbers of devices"
    if report.other_tokens:
        tokens = f"DIFFERENT TOKENS for prompts {list(report.other_tokens)}, which are excluded"
    single = report.measured[0].tokens_per_second
    return table_from_records(
        f"Milliseconds per step, medians; {report.settings['branches']} branches, {report.decodes} prompts of "
        f"{report.steps} steps x {report.rounds} alternating rounds, one core per device, {report.run.machine.cpu}; "
        f"{tokens}",
        report.measured,
        {
            "devices": lambda each: str(each.devices),
            "step": lambda each: ms_text(each.step),
            "engine": lambda each: ms_text(each.parts.engine),
            "gather": lambda each: ms_text(each.parts.gather),
            "select": lambda each: ms_text(each.parts.select),
            "commit": lambda each: ms_text(each.parts.commit),
            "host": lambda each: ms_text(each.parts.host),
            "tokens/s": lambda each: f"{each.tokens_per_second:.0f}",
            "speed-up": lambda each: ratio_text(each.tokens_per_second, single),
        },
    )


def _median_parts(parts: Sequence[StepParts]) -> StepParts:
    return StepParts(*map(statistics.median, zip(*map(astuple, parts), strict=True)))
