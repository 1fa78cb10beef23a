"""Everything that `lopa-export bench quality` measured, as its JSON file has it."""

from dataclasses import dataclass
from typing import Any

from lopa.bench.quality.curves import Curve
from lopa.bench.quality.measure import Row
from lopa.bench.quality.outcome import KeptOutcome
from lopa.bench.report import PromptFile, Run


@dataclass(frozen=True)
class QualityReport:
    """One run."""

    benchmark: str
    run: Run
    prompts: PromptFile
    settings: dict[str, Any]
    """Options that all configurations share."""
    rows: tuple[Row, ...]
    curves: tuple[Curve, ...]
    """Of the scored prompts; none where nothing was right."""
    outcomes: tuple[KeptOutcome, ...] = ()
    """Outcomes behind the rows, and others that a resumed run can take over."""
