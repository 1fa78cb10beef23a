"""Shows how far an export is: stages, with bytes where something is written. On standard error."""

from lopa.cli.shown.stages import ShownStages

_MEGA, _GIGA = 1e6, 1e9


class ExportProgress(ShownStages):
    """A lopa.export.progress.Progress, to be called inside its `with` block."""

    def __init__(self) -> None:
        super().__init__(bytes_text)


def bytes_text(count: float) -> str:
    """ "9.7 MB", "15.23 GB"."""
    return f"{count / _GIGA:.2f} GB" if count >= _GIGA else f"{count / _MEGA:.1f} MB"
