"""Shows how far a verification is: stages, with cases where something is compared. On standard error."""

from lopa.bench.pace import count_text
from lopa.cli.shown.stages import ShownStages


class VerifyProgress(ShownStages):
    """A lopa.export.verify.report.Progress, to be called inside its `with` block."""

    def __init__(self) -> None:
        super().__init__(count_text)
