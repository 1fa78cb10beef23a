"""What the speed benchmark reports, and its medians and ratios from the seconds of single steps. Does not measure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lopa.bench.report import PromptFile, Run
from lopa.bench.turns import median_ratio

ROUNDS = 3
"""How often each side decodes each prompt."""
LONG_CALL = 0.010
"""Seconds of an engine call from which the share outside it is reported apart."""
FORWARD_INCLUDES = (
    "forward = session.forward: checking the batch, copying it into bound memory, binding arrays whose shape changed, "
    "the engine call, copying the statistics out; engine call = ONNX Runtime's InferenceSession.run_with_iobinding or "
    "OpenVINO's InferRequest.start_async and wait alone"
)


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step."""

    branches: int
    step: float
    forward: float
    call: float | None
    """The engine call alone; None for the eager side, which has no single one."""


@dataclass(frozen=True)
class Decoded:
    """One prompt decoded once."""

    ids: tuple[int, ...]
    """All generated positions."""
    steps: tuple[StepTime, ...]

    @property
    def seconds(self) -> float:
        """Of all steps."""
        return sum(step.step for step in self.steps)


@dataclass(frozen=True)
class Compared:
    """Seconds per step on both sides, over the same steps."""

    steps: int
    """On each side, all rounds together."""
    ours_median: float
    eager_median: float
    ratio_of_medians: float
    ratio_of_totals: float
    """How many times less time ours took for all these steps."""


@dataclass(frozen=True)
class Outside:
    """The share of our steps that is not spent in the engine."""

    steps: int
    call_median: float
    """Seconds of an engine call."""
    outside_call: float
    outside_forward: float


@dataclass(frozen=True)
class Measured:
    """What the speed benchmark found."""

    rounds: int
    prompts: int
    same_tokens: bool
    other_tokens: tuple[int, ...]
    """Indexes of the prompts for which the sides decoded other tokens; they are left out of the times."""
    all_steps: Compared | None
    """None when no prompt was decoded the same."""
    full_steps: Compared | None
    """Only steps with as many branches as asked for; None when there was none."""
    ratio_by_prompt_median: float | None
    """Median over all turns of eager seconds / our seconds for the same prompt, one right after the other."""
    outside: Outside
    outside_long_calls: Outside | None
    """Only steps whose engine call took 10 ms or more; None when there was none."""


@dataclass(frozen=True)
class SpeedReport:
    """Everything that `lopa-export bench speed` measured."""

    benchmark: str
    run: Run
    prompts: PromptFile
    settings: dict[str, Any]
    adapter_apart: bool
    """Whether the eager side ran the adapter beside the matrices, as published, in place of merged."""
    forward_includes: str
    measured: Measured


def measured_from_turns(turns: Sequence[tuple[Decoded, Decoded]], *, prompts: int, branches: int) -> Measured:
    """Medians, ratios and shares of `turns` (ours, eager), which run through the prompts again and again."""
    other = sorted({turn % prompts for turn, (ours, eager) in enumerate(turns) if ours.ids != eager.ids})
    same = [pair for turn, pair in enumerate(turns) if turn % prompts not in other]
    pairs = [pair for ours, eager in same for pair in zip(ours.steps, eager.steps, strict=True)]
    our_steps = [step for ours, _ in turns for step in ours.steps]
    return Measured(
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


def _compared(pairs: Sequence[tuple[StepTime, StepTime]]) -> Compared | None:
    if not pairs:
        return None
    ours, eager = [pair[0].step for pair in pairs], [pair[1].step for pair in pairs]
    return Compared(
        steps=len(pairs),
        ours_median=statistics.median(ours),
        eager_median=statistics.median(eager),
        ratio_of_medians=statistics.median(eager) / statistics.median(ours),
        ratio_of_totals=sum(eager) / sum(ours),
    )


def _outside(steps: Sequence[StepTime]) -> Outside:
    calls = [step.call for step in steps if step.call is not None]
    total = sum(step.step for step in steps)
    return Outside(
        steps=len(steps),
        call_median=statistics.median(calls),
        outside_call=1 - sum(calls) / total,
        outside_forward=1 - sum(step.forward for step in steps) / total,
    )
