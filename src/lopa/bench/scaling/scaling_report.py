"""Scaling report: measured steps, the model's predictions, and projections."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

from lopa.bench.eval_set import EvalItem
from lopa.bench.forward.work import ForwardShape
from lopa.bench.progress import show_progress
from lopa.bench.report import PromptFile, Run, run_now
from lopa.bench.scaling.links import PUBLISHED_LINKS, DeviceLink, shared_memory_link
from lopa.bench.scaling.scaling_measurement import ROUNDS, SHARE_ROUNDS, Turn, measure_shares, measure_turns
from lopa.bench.scaling.scaling_model import (
    Decode,
    MessageSizes,
    ScalingModel,
    ShareCost,
    StepParts,
    sizes_from_manifest,
)
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import CheckFailedError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.sessions.onnxruntime_graph import available_cores


@dataclass(frozen=True)
class MeasuredScale:
    """Decodes with one number of devices, and the model's prediction."""

    devices: int
    tokens_per_second: float
    step: float
    """Median seconds per step."""
    parts: StepParts
    """Medians of each part. They do not add up to the median of the sum."""
    predicted: float
    """Median seconds per step according to the model."""


@dataclass(frozen=True)
class ProjectedScale:
    """The same decodes on a number of devices, according to the model."""

    link: str
    devices: int
    step: float
    """Median seconds per step."""
    tokens_per_second: float


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
    not_measured: tuple[int, ...]
    """Numbers of devices for which this machine has too few cores."""
    measured: tuple[MeasuredScale, ...]
    shares: tuple[ShareCost, ...]
    links: tuple[DeviceLink, ...]
    sizes: MessageSizes
    projected: tuple[ProjectedScale, ...]


def scaling_report(
    decoders: Mapping[int, Decoder],
    config: GenerationConfig,
    items: Sequence[EvalItem],
    prompts: PromptFile,
    *,
    counts: Sequence[int],
    arguments: Sequence[str],
    quiet: bool = False,
) -> ScalingReport:
    """Measure the `decoders` from `decoders_on_cores` and project all `counts`; `quiet` hides the progress.

    Raises CheckFailedError if no prompt decodes equally on all of them.
    """
    one, counts, here = decoders[1], sorted({1, *counts}), sorted(decoders)
    run = run_now(one.bundle, device=decoders[here[-1]].session.device, threads=1, arguments=arguments)
    with show_progress("prompts on every number of devices", ROUNDS * len(items), quiet=quiet) as progress:
        turns = measure_turns(decoders, items, config, progress)
    other = prompts_with_other_tokens(turns, len(items))
    if len(other) == len(items):
        raise CheckFailedError(
            f"{run.bundle} decodes every prompt differently on some of {', '.join(map(str, here))} devices",
            expected="equal tokens on every number of devices for at least one prompt",
            remedy="run lopa-export verify to check the engine, and report the problem with the bundle's manifest.json",
        )
    decodes = {count: typical_decodes(turns[count], len(items), other) for count in here}
    with show_progress("rounds of device shares", SHARE_ROUNDS, quiet=quiet) as progress:
        shares = measure_shares(decoders, counts, most_common_full_shape(decodes[1]), progress)
    model = ScalingModel(sizes_from_manifest(one.bundle.manifest), shares)
    links = (shared_memory_link(max(available_cores())), *PUBLISHED_LINKS)
    tokens = sum(len(turn.ids) for index, turn in enumerate(turns[1][: len(items)]) if index not in other)
    projected = project_scales(decodes[1], counts, links, model, tokens)
    predicted = {each.devices: each.step for each in projected if each.link == links[0].name}
    return ScalingReport(
        benchmark="scaling",
        run=run,
        prompts=prompts,
        settings=dict(one.options(config)),
        rounds=ROUNDS,
        decodes=len(decodes[1]),
        steps=sum(map(len, decodes[1])),
        other_tokens=other,
        not_measured=tuple(count for count in counts if count not in here),
        measured=tuple(scale_from_decodes(count, decodes[count], predicted[count], tokens) for count in here),
        shares=shares,
        links=links,
        sizes=model.sizes,
        projected=projected,
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
            replace(same[0], parts=median_parts([step.parts for step in same]))
            for same in zip(*(turn.steps for turn in turns[index::prompts]), strict=True)
        )
        for index in range(prompts)
        if index not in excluded
    ]


def median_parts(parts: Sequence[StepParts]) -> StepParts:
    """Return the median of each part."""
    return StepParts(*map(statistics.median, zip(*map(astuple, parts), strict=True)))


def most_common_full_shape(decodes: Sequence[Decode]) -> ForwardShape:
    """Return the most common shape among the steps with the most branches."""
    shapes = Counter(step.shape for steps in decodes for step in steps)
    return max(shapes, key=lambda shape: (shape.branches, shapes[shape]))


def scale_from_decodes(devices: int, decodes: Sequence[Decode], predicted: float, tokens: int) -> MeasuredScale:
    """Return the figures of `decodes` with `tokens` tokens in total, measured on `devices` devices."""
    steps = [step.parts for decode in decodes for step in decode]
    seconds = [step.seconds for step in steps]
    return MeasuredScale(devices, tokens / sum(seconds), statistics.median(seconds), median_parts(steps), predicted)


def project_scales(
    single: Sequence[Decode], counts: Sequence[int], links: Sequence[DeviceLink], model: ScalingModel, tokens: int
) -> tuple[ProjectedScale, ...]:
    """Return the decodes, recorded on one device, projected to every number of devices over every link."""
    found = []
    for link in links:
        for devices in counts:
            seconds = [step.seconds for decode in single for step in model.steps(decode, devices, link)]
            found.append(ProjectedScale(link.name, devices, statistics.median(seconds), tokens / sum(seconds)))
    return tuple(found)
