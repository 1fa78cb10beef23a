"""The forwards for which an engine of TensorRT was refused, with the answers of the other device, for Polygraphy."""

from pathlib import Path

from lopa.export.replay.answered_forward import AnsweredForward
from lopa.export.replay.folder import Rule, write_forwards
from lopa.export.replay.recorded_session import RecordedSession
from lopa.export.replay.saved_cases import SAVED
from lopa.export.staging import staged_folder
from lopa.export.verify.token_gate import GateTolerance

MAX_FORWARDS = 8
"""Kept, the first ones: each has the prefix and the new rows of all its windows, in memory and on disk."""


class FailedForwards:
    """Gathers them."""

    def __init__(self) -> None:
        self.count = 0
        """All of them, also those that were not kept."""
        self._kept: list[AnsweredForward] = []

    def add_last(self, session: RecordedSession) -> None:
        """Keep the last forward of `session`, which is the other device's."""
        self.count += 1
        if len(self._kept) < MAX_FORWARDS:
            self._kept.append(session.last_forward())

    def save(self, folder: Path, reference: str, tolerance: GateTolerance) -> int:
        """Write those that were kept, at least one, into a new folder and say how many.

        Raises BadInputError when it cannot be written.
        """
        rule = Rule(
            reference=reference, tolerance=tolerance.statistics, by_rms=tolerance.by_rms, margin=tolerance.margin
        )
        with staged_folder(folder, overwrite=False, product=SAVED) as staged:
            write_forwards(staged, self._kept, "standard", rule)
        return len(self._kept)
