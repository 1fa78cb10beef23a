"""Decode diffusion language models with LoPA: `from lopa import Decoder` (docs/decoding.md).

The names below are the public interface. Each is imported when it is first used, so `import lopa` loads nothing else.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lopa.runtime import (
        AdmissionReport,
        BadInputError,
        BranchChoice,
        CheckFailedError,
        Decoder,
        DevicesLostError,
        DoneEvent,
        DraftEvent,
        EndReport,
        Engine,
        EngineClosedError,
        EngineFailedError,
        EngineObserver,
        EngineStatus,
        Event,
        GenerationConfig,
        GenerationResult,
        GrammarHelperError,
        GrammarLimits,
        GrammarRefusedError,
        LopaError,
        MissingBackendError,
        NonFiniteAnswerError,
        OutputFailedError,
        PreparationStoppedError,
        PreparedRequest,
        PromptRequest,
        PromptTooLongError,
        QueueFullError,
        RequestHandle,
        Reservation,
        RoundReport,
        Step,
        TextEvent,
        trace_table,
    )

__version__ = "0.1.0"
"""Version of the whole project. The build reads it here, without importing."""

__all__ = [
    "AdmissionReport",
    "BadInputError",
    "BranchChoice",
    "CheckFailedError",
    "Decoder",
    "DevicesLostError",
    "DoneEvent",
    "DraftEvent",
    "EndReport",
    "Engine",
    "EngineClosedError",
    "EngineFailedError",
    "EngineObserver",
    "EngineStatus",
    "Event",
    "GenerationConfig",
    "GenerationResult",
    "GrammarHelperError",
    "GrammarLimits",
    "GrammarRefusedError",
    "LopaError",
    "MissingBackendError",
    "NonFiniteAnswerError",
    "OutputFailedError",
    "PreparationStoppedError",
    "PreparedRequest",
    "PromptRequest",
    "PromptTooLongError",
    "QueueFullError",
    "RequestHandle",
    "Reservation",
    "RoundReport",
    "Step",
    "TextEvent",
    "__version__",
    "trace_table",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lopa import runtime  # not quick to import

    return getattr(runtime, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
