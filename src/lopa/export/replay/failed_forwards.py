"""Forwards on which a TensorRT engine failed its check, with the results of the reference device, for Polygraphy."""

from pathlib import Path

from lopa.export.replay.answered_forward import AnsweredForward
from lopa.export.replay.forwards_folder import ComparisonRule, write_forwards
from lopa.export.replay.recorded_session import RecordedSession
from lopa.export.replay.saved_cases import SAVED
from lopa.export.staging import staged_folder
from lopa.export.verify.token_gate import GateTolerance

MAX_FORWARDS = 8
"""Maximum number of stored forwards. Each has the prefixes and new rows of all its windows, in memory and on disk."""


class FailedForwards:
    """Collection of failed forwards, up to MAX_FORWARDS of them."""

    def __init__(self) -> None:
        self.count = 0
        """Number of failed forwards, including forwards that are not stored."""
        self._kept: list[AnsweredForward] = []

    def add_last(self, session: RecordedSession) -> None:
        """Store the last forward of `session`, which runs on the reference device."""
        self.count += 1
        if len(self._kept) < MAX_FORWARDS:
            self._kept.append(session.last_forward())

    def save(self, folder: Path, reference: str, tolerance: GateTolerance) -> int:
        """Write the stored forwards, at least one, to a new folder. Return their number.

        Raises BadInputError if the folder cannot be written.
        """
        rule = ComparisonRule(
            reference=reference, tolerance=tolerance.statistics, by_rms=tolerance.by_rms, margin=tolerance.margin
        )
        with staged_folder(folder, overwrite=False, product=SAVED) as staged:
            write_forwards(staged, self._kept, "standard", rule)
        return len(self._kept)
