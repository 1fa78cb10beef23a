"""Report of `lopa-export tune`, as its JSON file stores it."""

from dataclasses import dataclass
from typing import Any

from lopa.bench.quality.intervals import Interval
from lopa.bench.quality.outcome import KeptOutcome
from lopa.bench.report import PromptFile, Run
from lopa.bench.tuning.ladder import Verdict
from lopa.bench.tuning.score_difference import ScoreDifference


@dataclass(frozen=True)
class TuningRow:
    """Figures of one configuration on the questions that it answered."""

    config: str
    bundle: str
    """Name of the bundle's folder."""
    options: dict[str, Any]
    """Options that replace the bundle's defaults."""
    questions: int
    score: float
    """Mean score, from 0 to 1."""
    score_interval: Interval
    """95 % interval of the score over similar questions."""
    difference: ScoreDifference | None
    """Difference from the control's score, or None for the control itself."""
    tokens_per_second: float
    speed: float
    """Tokens per second divided by the control's, on the same questions."""
    seconds_per_question: float
    verdict: Verdict | None
    """Result of the comparison with the control, or None for a configuration that was not compared."""
    on_front: bool
    """True if no configuration that answered all questions is faster and has at least its score."""


@dataclass(frozen=True)
class PresetRow:
    """A preset, timed once more in turns with the control."""

    preset: str
    config: str
    options: dict[str, Any]
    tokens_per_second: float
    control_tokens_per_second: float
    speed: float
    """Tokens per second divided by the control's."""
    speed_interval: Interval | None
    """95 % interval of the speed over similar questions."""
    questions: int
    measured: str
    """Score and speed, as a phrase."""


@dataclass(frozen=True)
class TuningReport:
    """Report of one run."""

    benchmark: str
    run: Run
    prompts: PromptFile
    scoring: str
    """Meaning of a score: correct answers, or agreement with slow decoding."""
    control: dict[str, Any]
    """Options of the bundle's defaults, the control."""
    max_loss: float
    """Allowed loss of the preset `fast`, as a share of the score."""
    is_complete: bool
    """False if the time limit ended the search."""
    decodes: int
    seconds: float
    rows: tuple[TuningRow, ...]
    presets: tuple[PresetRow, ...]
    outcomes: tuple[KeptOutcome, ...] = ()
    """All outcomes, which a resumed run reuses."""
