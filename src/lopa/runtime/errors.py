"""Errors that a user may see: what was received, what was expected, what to do, and the exit code."""

import copy
import copyreg
from typing import Self


class LopaError(Exception):
    """Base of every error that this project raises on purpose.

    `received`, `expected` and `remedy` are full phrases; the command line prints all three and exits with `exit_code`.
    """

    exit_code = 2
    prompt_number: int | None = None
    """Number of the prompt that is wrong, counted from 0, where several were given."""

    def __init__(self, received: str, *, expected: str, remedy: str) -> None:
        super().__init__(f"{received}\n  expected: {expected}\n  what to do: {remedy}")
        self.received = received
        self.expected = expected
        self.remedy = remedy

    def with_received(self, received: str) -> Self:
        """Return this error with another phrase for what was received."""
        changed = copy.copy(self)
        changed.args = (f"{received}\n  expected: {self.expected}\n  what to do: {self.remedy}",)
        changed.received = received
        return changed

    def __reduce__(self) -> tuple[object, ...]:
        """So that one that crosses from process to process (MPI, Ray) is still itself there."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class BadInputError(LopaError):
    """A file, a flag or a value that cannot be used (exit code 2)."""


class OutputFailedError(LopaError):
    """The operating system refused what was written to a file or to standard output (exit code 2)."""


class NonFiniteAnswerError(BadInputError):
    """A forward answered NaN or infinity for a request, which ends; what else runs goes on."""


class CheckFailedError(LopaError):
    """A check ran to its end and failed (exit code 1)."""

    exit_code = 1


class MissingBackendError(LopaError):
    """A library, a provider or a device that this machine does not have (exit code 3)."""

    exit_code = 3


class DevicesLostError(LopaError):
    """Every device failed in mid-decode (exit code 3: a device is missing now; neither input nor check is wrong)."""

    exit_code = 3


class PromptTooLongError(BadInputError):
    """A prompt that leaves no room for its answer in the positions that the model has."""

    answer_too_long = False
    """True where the requested length leaves no room for any prompt."""


class GrammarRefusedError(BadInputError):
    """A grammar that cannot be used: it does not parse, is of features that are not there, or cannot end in time."""


class QueueFullError(BadInputError):
    """An engine has as many unfinished requests as it was opened for."""


class EngineClosedError(BadInputError):
    """A request for an engine that was closed, or that ended because its device failed."""


class EngineFailedError(LopaError):
    """A device failed in the middle of a forward, and with it every request that was running (exit code 3)."""

    exit_code = 3


class PreparationStoppedError(LopaError):
    """A request that was cancelled, or whose engine was closed, before it was submitted (exit code 3)."""

    exit_code = 3


def stopped_preparation() -> PreparationStoppedError:
    """Return the error of a request that nobody waits for any more."""
    return PreparationStoppedError(
        "a request that was cancelled while it was prepared",
        expected="a request that somebody waits for",
        remedy="submit it again",
    )


class GrammarHelperError(LopaError):
    """The process that prepares grammars cannot be started, or dies whatever it is asked (exit code 3)."""

    exit_code = 3
