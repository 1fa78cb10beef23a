"""Decode diffusion language models with LoPA: `from lopa import Decoder` (docs/public-api.md).

`import lopa` loads the standard library only. A name is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lopa.runtime.branch_choice import BranchChoice
    from lopa.runtime.bundle import Bundle
    from lopa.runtime.bundle.manifest import Manifest
    from lopa.runtime.contract.timeline import Span, Timeline
    from lopa.runtime.decoder import Decoder
    from lopa.runtime.decoding.decoding import Step, StopReason
    from lopa.runtime.decoding.trace_table import trace_table
    from lopa.runtime.engine import Engine
    from lopa.runtime.errors import (
        BadInputError,
        CheckFailedError,
        DevicesLostError,
        EngineClosedError,
        EngineFailedError,
        GrammarHelperError,
        GrammarRefusedError,
        LopaError,
        MissingBackendError,
        NonFiniteAnswerError,
        OutputFailedError,
        PreparationStoppedError,
        PromptTooLongError,
        QueueFullError,
    )
    from lopa.runtime.generation_config import GenerationConfig, GenerationOptions
    from lopa.runtime.grammar.limits import GrammarLimits
    from lopa.runtime.requests.handle import RequestHandle
    from lopa.runtime.requests.observer import AdmissionReport, EndReport, EngineObserver, RoundReport
    from lopa.runtime.requests.prepared import PreparedRequest
    from lopa.runtime.requests.reservation import Reservation
    from lopa.runtime.requests.result import DoneEvent, DraftEvent, Event, GenerationResult, TextEvent
    from lopa.runtime.requests.status import EngineStatus
    from lopa.runtime.sessions.session import Session
    from lopa.runtime.text.prompt_ids import Prompt, PromptRequest
    from lopa.runtime.text.tokenizer import Tokenizer

__version__ = "0.1.0"
"""Version of the whole project. The build reads it here, without importing."""

_MODULES = {
    "AdmissionReport": "lopa.runtime.requests.observer",
    "BadInputError": "lopa.runtime.errors",
    "BranchChoice": "lopa.runtime.branch_choice",
    "Bundle": "lopa.runtime.bundle",
    "CheckFailedError": "lopa.runtime.errors",
    "Decoder": "lopa.runtime.decoder",
    "DevicesLostError": "lopa.runtime.errors",
    "DoneEvent": "lopa.runtime.requests.result",
    "DraftEvent": "lopa.runtime.requests.result",
    "EndReport": "lopa.runtime.requests.observer",
    "Engine": "lopa.runtime.engine",
    "EngineClosedError": "lopa.runtime.errors",
    "EngineFailedError": "lopa.runtime.errors",
    "EngineObserver": "lopa.runtime.requests.observer",
    "EngineStatus": "lopa.runtime.requests.status",
    "Event": "lopa.runtime.requests.result",
    "GenerationConfig": "lopa.runtime.generation_config",
    "GenerationOptions": "lopa.runtime.generation_config",
    "GenerationResult": "lopa.runtime.requests.result",
    "GrammarHelperError": "lopa.runtime.errors",
    "GrammarLimits": "lopa.runtime.grammar.limits",
    "GrammarRefusedError": "lopa.runtime.errors",
    "LopaError": "lopa.runtime.errors",
    "Manifest": "lopa.runtime.bundle.manifest",
    "MissingBackendError": "lopa.runtime.errors",
    "NonFiniteAnswerError": "lopa.runtime.errors",
    "OutputFailedError": "lopa.runtime.errors",
    "PreparationStoppedError": "lopa.runtime.errors",
    "PreparedRequest": "lopa.runtime.requests.prepared",
    "Prompt": "lopa.runtime.text.prompt_ids",
    "PromptRequest": "lopa.runtime.text.prompt_ids",
    "PromptTooLongError": "lopa.runtime.errors",
    "QueueFullError": "lopa.runtime.errors",
    "RequestHandle": "lopa.runtime.requests.handle",
    "Reservation": "lopa.runtime.requests.reservation",
    "RoundReport": "lopa.runtime.requests.observer",
    "Session": "lopa.runtime.sessions.session",
    "Span": "lopa.runtime.contract.timeline",
    "Step": "lopa.runtime.decoding.decoding",
    "StopReason": "lopa.runtime.decoding.decoding",
    "TextEvent": "lopa.runtime.requests.result",
    "Timeline": "lopa.runtime.contract.timeline",
    "Tokenizer": "lopa.runtime.text.tokenizer",
    "trace_table": "lopa.runtime.decoding.trace_table",
}
"""Module of every public name, as in the imports above, which only type checkers and editors read."""

__all__ = [
    "AdmissionReport",
    "BadInputError",
    "BranchChoice",
    "Bundle",
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
    "GenerationOptions",
    "GenerationResult",
    "GrammarHelperError",
    "GrammarLimits",
    "GrammarRefusedError",
    "LopaError",
    "Manifest",
    "MissingBackendError",
    "NonFiniteAnswerError",
    "OutputFailedError",
    "PreparationStoppedError",
    "PreparedRequest",
    "Prompt",
    "PromptRequest",
    "PromptTooLongError",
    "QueueFullError",
    "RequestHandle",
    "Reservation",
    "RoundReport",
    "Session",
    "Span",
    "Step",
    "StopReason",
    "TextEvent",
    "Timeline",
    "Tokenizer",
    "__version__",
    "trace_table",
]


if not TYPE_CHECKING:  # a type checker would take every misspelled name for one that is found here

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_MODULES[name]), name)
        globals()[name] = value  # found there from now on
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
