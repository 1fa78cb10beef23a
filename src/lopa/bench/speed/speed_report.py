"""Report of the speed benchmark: medians and ratios of the seconds of single steps."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lopa.bench.report import PromptFile, Run
from lopa.bench.turns import median_ratio

ROUNDS = 3
"""Decodes of each prompt on each side."""
LONG_CALL = 0.010
"""Seconds of an engine call from which the share outside it is reported separately."""
FORWARD_INCLUDES = (
    "forward = session.forward: check the batch, copy it into bound memory, bind arrays of new shapes, run the engine, "
    "copy the statistics; engine call = only InferenceSession.run_with_iobinding of ONNX Runtime, or "
    "InferRequest.start_async and wait of OpenVINO"
)


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step."""

    branches: int
    step: float
    forward: float
    call: float | None
    """Seconds of the engine call, or None for the eager side, which has several."""


@dataclass(frozen=True)
class TimedDecode:
    """One prompt decoded once."""

    ids: tuple[int, ...]
    """All generated token ids."""
    steps: tuple[StepTime, ...]

    @property
    def seconds(self) -> float:
        """Seconds of all steps."""
        return sum(step.step for step in self.steps)


@dataclass(frozen=True)
class StepComparison:
    """Seconds per step of both sides over the same steps."""

    steps: int
    """Number of steps per side, over all rounds."""
    ours_median: float
    eager_median: float
    ratio_of_medians: float
    ratio_of_totals: float
    """Seconds of the eager side divided by the seconds of lopa, over all steps."""


@dataclass(frozen=True)
class OutsideShare:
    """Share of the time of lopa's steps that is spent outside the engine."""

    steps: int
    call_median: float
    """Median seconds of an engine call."""
    outside_call: float
    outside_forward: float


@dataclass(frozen=True)
class SpeedFigures:
    """Figures of the speed benchmark."""

    rounds: int
    prompts: int
    same_tokens: bool
    other_tokens: tuple[int, ...]
    """Indices of prompts with different tokens, which are excluded from the times."""
    all_steps: StepComparison | None
    """All steps, or None if no prompt was decoded equally."""
    full_steps: StepComparison | None
    """Steps with the full number of branches, or None if there are none."""
    ratio_by_prompt_median: float | None
    """Median over all turns of eager seconds / lopa's seconds for the same prompt, decoded one after the other."""
    outside: OutsideShare
    outside_long_calls: OutsideShare | None
    """Steps whose engine call took 10 ms or more, or None if there are none."""


@dataclass(frozen=True)
class SpeedReport:
    """Report of `lopa-export bench speed`."""

    benchmark: str
    run: Run
    prompts: PromptFile
    settings: dict[str, Any]
    forward_includes: str
    measured: SpeedFigures


def measured_from_turns(
    turns: Sequence[tuple[TimedDecode, TimedDecode]], *, prompts: int, branches: int
) -> SpeedFigures:
    """Return medians, ratios and shares of `turns` (ours, eager), which cycle through the prompts."""
    other = sorted({turn % prompts for turn, (ours, eager) in enumerate(turns) if ours.ids != eager.ids})
    same = [pair for turn, pair in enumerate(turns) if turn % prompts not in other]
    pairs = [pair for ours, eager in same for pair in zip(ours.steps, eager.steps, strict=True)]
    our_steps = [step for ours, _ in turns for step in ours.steps]
    return SpeedFigures(
        rounds=len(turns) // prompts,
        prompts=prompts,
        same_tokens=not other,
        other_tokens=tuple(other),
        all_steps=_compared(pairs),
        full_steps=_compared([pair for pair in pairs if pair[0].branches == branches]),
        ratio_by_prompt_median=median_ratio([each.seconds for _, each in same], [each.seconds for each, _ in same])
        if same
        else None,
        outside=_outside(our_steps),
        outside_long_calls=_outside(long_calls)
        if (long_calls := [step for step in our_steps if step.call is not None and step.call >= LONG_CALL])
        else None,
    )


def _compared(pairs: Sequence[tuple[StepTime, StepTime]]) -> StepComparison | None:
    if not pairs:
        return None
    ours, eager = [pair[0].step for pair in pairs], [pair[1].step for pair in pairs]
    return StepComparison(
        steps=len(pairs),
        ours_median=statistics.median(ours),
        eager_median=statistics.median(eager),
        ratio_of_medians=statistics.median(eager) / statistics.median(ours),
        ratio_of_totals=sum(eager) / sum(ours),
    )


def _outside(steps: Sequence[StepTime]) -> OutsideShare:
    calls = [step.call for step in steps if step.call is not None]
    total = sum(step.step for step in steps)
    return OutsideShare(
        steps=len(steps),
        call_median=statistics.median(calls),
        outside_call=1 - sum(calls) / total,
        outside_forward=1 - sum(step.forward for step in steps) / total,
    )
