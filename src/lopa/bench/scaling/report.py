"""What the scaling benchmark reports: measured steps, the model beside them, and projections. Does not measure."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

from lopa.bench.forward.work import ForwardShape
from lopa.bench.report import PromptFile, Run
from lopa.bench.scaling.links import Link
from lopa.bench.scaling.model import EngineSeconds, MessageSizes, RecordedStep, StepParts, steps_on_devices

Decode = tuple[RecordedStep, ...]


@dataclass(frozen=True)
class Turn:
    """One prompt decoded once on some number of devices."""

    ids: tuple[int, ...]
    """Those that the result counts."""
    steps: Decode


@dataclass(frozen=True)
class ShareCost:
    """The engine at the shape that the fullest device gets of the commonest step with all branches."""

    devices: int
    branches: int
    """Of the fullest device."""
    window: int
    prefix: int
    wanted: int
    alone: float
    """Seconds while the other devices rest."""
    together: float | None
    """Seconds of the slowest device while all compute as many branches; None where there are not enough cores."""


@dataclass(frozen=True)
class ModelCosts:
    """Everything that the model is fed with, beside the recorded steps."""

    link: Link
    """Between devices of this machine."""
    sizes: MessageSizes
    engine: EngineSeconds
    slowdowns: Mapping[int, float]
    """By devices of this machine that compute at the same time: how many times longer a forward takes."""


@dataclass(frozen=True)
class Measured:
    """Decodes on one number of devices, and what the model says of them."""

    devices: int
    tokens_per_second: float
    step: float
    """Median seconds."""
    parts: StepParts
    """Medians of each part: they do not add up to the median of their sum."""
    predicted: float
    """Median seconds of a step by the model."""
    predicted_parts: StepParts
    error: float
    """(predicted - step) / step"""
    error_of_total: float
    """The same of the sum of all steps."""
    error_without_slowdown: float
    """Of the median, by the cost table as measured on one core alone."""


@dataclass(frozen=True)
class Projected:
    """The same decodes on devices that are not here."""

    link: str
    devices: int
    slowdown: float
    step: float
    """Median seconds."""
    tokens_per_second: float


@dataclass(frozen=True)
class ScalingReport:
    """Everything that `lopa-export bench --devices` found."""

    benchmark: str
    run: Run
    prompts: PromptFile
    settings: dict[str, Any]
    rounds: int
    """How often each prompt was decoded on each number of devices; a step's seconds are the median of these."""
    decodes: int
    """Prompts that are compared."""
    steps: int
    """Of these prompts together."""
    other_tokens: tuple[int, ...]
    """Indexes of prompts for which some number of devices decoded other tokens or steps; they are left out."""
    not_measured: tuple[int, ...]
    """Numbers of devices for which this machine has too few cores."""
    measured: tuple[Measured, ...]
    shares: tuple[ShareCost, ...]
    links: tuple[Link, ...]
    sizes: MessageSizes
    projected: tuple[Projected, ...]


def prompts_with_other_tokens(turns: Mapping[int, Sequence[Turn]], prompts: int) -> tuple[int, ...]:
    """Indexes of the prompts that were not decoded the same in every turn, on every number of devices."""
    found = [set[tuple[tuple[int, ...], tuple[ForwardShape, ...]]]() for _ in range(prompts)]
    for each in turns.values():
        for number, turn in enumerate(each):
            found[number % prompts].add((turn.ids, tuple(step.shape for step in turn.steps)))
    return tuple(index for index, decoded in enumerate(found) if len(decoded) > 1)


def typical_decodes(turns: Sequence[Turn], prompts: int, left_out: Sequence[int] = ()) -> list[Decode]:
    """One decode for each prompt, which the turns run through again and again: medians over its turns, step by step."""
    decodes = []
    for index in range(prompts):
        if index not in left_out:
            rounds = [turn.steps for turn in turns[index::prompts]]
            decodes.append(
                tuple(
                    replace(same[0], parts=median_parts([step.parts for step in same]))
                    for same in zip(*rounds, strict=True)
                )
            )
    return decodes


def median_parts(parts: Sequence[StepParts]) -> StepParts:
    """The median of each part."""
    return StepParts(*map(statistics.median, zip(*map(astuple, parts), strict=True)))


def commonest_full_shape(decodes: Sequence[Decode]) -> ForwardShape:
    """The shape that most steps with the most branches have."""
    shapes = Counter(step.shape for steps in decodes for step in steps)
    most = max(shape.branches for shape in shapes)
    return max((shape for shape in shapes if shape.branches == most), key=lambda shape: shapes[shape])


def measured_scale(
    devices: int, decodes: Sequence[Decode], single: Sequence[Decode], costs: ModelCosts, tokens: int
) -> Measured:
    """`decodes` were measured on `devices` devices, `single` are the same on one, from which the model replays them."""
    steps = [step.parts for decode in decodes for step in decode]
    predicted = _replayed(single, devices, costs.link, costs, costs.slowdowns.get(devices, 1.0))
    alone = _replayed(single, devices, costs.link, costs, 1.0)
    step = _median_step(steps)
    return Measured(
        devices=devices,
        tokens_per_second=tokens / _total(steps),
        step=step,
        parts=median_parts(steps),
        predicted=_median_step(predicted),
        predicted_parts=median_parts(predicted),
        error=_median_step(predicted) / step - 1,
        error_of_total=_total(predicted) / _total(steps) - 1,
        error_without_slowdown=_median_step(alone) / step - 1,
    )


def projected_scale(
    single: Sequence[Decode], counts: Sequence[int], links: Sequence[Link], costs: ModelCosts, tokens: int
) -> list[Projected]:
    """The decodes on every number of devices over every link.

    Devices joined by this machine's own memory slow each other down, beyond the cores that there are as much as the
    most that were measured; devices on other links have memory of their own.
    """
    found = []
    for link in links:
        for devices in counts:
            slowdown = slowdown_of(costs.slowdowns, devices) if link == costs.link else 1.0
            steps = _replayed(single, devices, link, costs, slowdown)
            found.append(Projected(link.name, devices, slowdown, _median_step(steps), tokens / _total(steps)))
    return found


def slowdown_of(slowdowns: Mapping[int, float], devices: int) -> float:
    """That of `devices` or the next smaller number that was measured; 1 for a device alone."""
    known = [count for count in slowdowns if count <= devices]
    return slowdowns[max(known)] if known else 1.0


def _replayed(
    single: Sequence[Decode], devices: int, link: Link, costs: ModelCosts, slowdown: float
) -> list[StepParts]:
    return [
        step
        for decode in single
        for step in steps_on_devices(decode, devices, link, costs.sizes, costs.engine, slowdown=slowdown)
    ]


def _median_step(steps: Sequence[StepParts]) -> float:
    return statistics.median(step.seconds for step in steps)


def _total(steps: Sequence[StepParts]) -> float:
    return sum(step.seconds for step in steps)
