"""Report of `lopa-export bench quality`, as its JSON file stores it."""

from dataclasses import dataclass
from typing import Any

from lopa.bench.quality.curves import Curve
from lopa.bench.quality.outcome import KeptOutcome
from lopa.bench.quality.quality_figures import Row
from lopa.bench.report import PromptFile, Run


@dataclass(frozen=True)
class QualityReport:
    """Report of one run."""

    benchmark: str
    run: Run
    prompts: PromptFile
    settings: dict[str, Any]
    """Options that all configurations share."""
    rows: tuple[Row, ...]
    curves: tuple[Curve, ...]
    """Curves of the scored kinds with at least one correct answer."""
    outcomes: tuple[KeptOutcome, ...] = ()
    """Outcomes of the rows, and others that a resumed run can reuse."""
