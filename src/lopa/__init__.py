"""Decode diffusion language models with LoPA: `from lopa import Decoder` (docs/reference/python.md).

`import lopa` loads only the standard library. Each public name is imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lopa.runtime.bundle import Bundle as Bundle
    from lopa.runtime.bundle.manifest import Manifest as Manifest
    from lopa.runtime.chat.call_format import CallFormat as CallFormat
    from lopa.runtime.chat.chat import Chat as Chat
    from lopa.runtime.chat.prepared_chat import AnswerForm as AnswerForm
    from lopa.runtime.contract.row_statistics import TokenLogprob as TokenLogprob
    from lopa.runtime.decoder import Decoder as Decoder
    from lopa.runtime.decoding.step import Step as Step
    from lopa.runtime.decoding.step import step_table as step_table
    from lopa.runtime.engine import Engine as Engine
    from lopa.runtime.errors import BadInputError as BadInputError
    from lopa.runtime.errors import CheckFailedError as CheckFailedError
    from lopa.runtime.errors import ChoicesRefusedError as ChoicesRefusedError
    from lopa.runtime.errors import DecoderBusyError as DecoderBusyError
    from lopa.runtime.errors import DecoderClosedError as DecoderClosedError
    from lopa.runtime.errors import DeviceMemoryError as DeviceMemoryError
    from lopa.runtime.errors import DevicesLostError as DevicesLostError
    from lopa.runtime.errors import EngineClosedError as EngineClosedError
    from lopa.runtime.errors import EngineFailedError as EngineFailedError
    from lopa.runtime.errors import FieldError as FieldError
    from lopa.runtime.errors import GrammarHelperError as GrammarHelperError
    from lopa.runtime.errors import GrammarRefusedError as GrammarRefusedError
    from lopa.runtime.errors import LopaError as LopaError
    from lopa.runtime.errors import MissingBackendError as MissingBackendError
    from lopa.runtime.errors import NonFiniteAnswerError as NonFiniteAnswerError
    from lopa.runtime.errors import OutputFailedError as OutputFailedError
    from lopa.runtime.errors import PreparationStoppedError as PreparationStoppedError
    from lopa.runtime.errors import PromptTooLongError as PromptTooLongError
    from lopa.runtime.errors import QueueFullError as QueueFullError
    from lopa.runtime.errors import ResourceExhaustedError as ResourceExhaustedError
    from lopa.runtime.errors import StrategyFailedError as StrategyFailedError
    from lopa.runtime.generation_config import BranchChoice as BranchChoice
    from lopa.runtime.generation_config import GenerationConfig as GenerationConfig
    from lopa.runtime.generation_config import GenerationOptions as GenerationOptions
    from lopa.runtime.generation_config import ResolvedOptions as ResolvedOptions
    from lopa.runtime.grammar.grammar_limits import GrammarLimits as GrammarLimits
    from lopa.runtime.options import DecodingParams as DecodingParams
    from lopa.runtime.requests.admission import EngineStatus as EngineStatus
    from lopa.runtime.requests.admission import Reservation as Reservation
    from lopa.runtime.requests.handle import RequestHandle as RequestHandle
    from lopa.runtime.requests.handle import RequestTiming as RequestTiming
    from lopa.runtime.requests.job import PreparedRequest as PreparedRequest
    from lopa.runtime.requests.observer import AdmissionReport as AdmissionReport
    from lopa.runtime.requests.observer import EndReport as EndReport
    from lopa.runtime.requests.observer import EngineObserver as EngineObserver
    from lopa.runtime.requests.observer import RoundReport as RoundReport
    from lopa.runtime.requests.request import Prompt as Prompt
    from lopa.runtime.requests.request import Request as Request
    from lopa.runtime.requests.result import DoneEvent as DoneEvent
    from lopa.runtime.requests.result import DraftEvent as DraftEvent
    from lopa.runtime.requests.result import Event as Event
    from lopa.runtime.requests.result import GenerationResult as GenerationResult
    from lopa.runtime.requests.result import TextEvent as TextEvent
    from lopa.runtime.revision import Revision as Revision
    from lopa.runtime.sessions.session import Session as Session
    from lopa.runtime.state.answer_state import StopReason as StopReason
    from lopa.runtime.state.choice_scores import ChoiceScore as ChoiceScore
    from lopa.runtime.state.choice_scores import ChoiceScores as ChoiceScores
    from lopa.runtime.text.text_with_holes import Hole as Hole
    from lopa.runtime.text.text_with_holes import TextWithHoles as TextWithHoles
    from lopa.runtime.text.text_with_holes import text_with_holes as text_with_holes
    from lopa.runtime.text.tokenizer import Tokenizer as Tokenizer

__version__ = "0.1.0"
"""Version of the project. The build reads it from this file without importing it."""

_NAMES = {
    "lopa.runtime.bundle": "Bundle",
    "lopa.runtime.bundle.manifest": "Manifest",
    "lopa.runtime.chat.call_format": "CallFormat",
    "lopa.runtime.chat.chat": "Chat",
    "lopa.runtime.chat.prepared_chat": "AnswerForm",
    "lopa.runtime.contract.row_statistics": "TokenLogprob",
    "lopa.runtime.decoder": "Decoder",
    "lopa.runtime.decoding.step": "Step step_table",
    "lopa.runtime.engine": "Engine",
    "lopa.runtime.errors": (
        "BadInputError CheckFailedError ChoicesRefusedError DecoderBusyError DecoderClosedError DeviceMemoryError "
        "DevicesLostError EngineClosedError EngineFailedError FieldError GrammarHelperError GrammarRefusedError "
        "LopaError MissingBackendError NonFiniteAnswerError OutputFailedError PreparationStoppedError "
        "PromptTooLongError QueueFullError ResourceExhaustedError StrategyFailedError"
    ),
    "lopa.runtime.generation_config": "BranchChoice GenerationConfig GenerationOptions ResolvedOptions",
    "lopa.runtime.grammar.grammar_limits": "GrammarLimits",
    "lopa.runtime.options": "DecodingParams",
    "lopa.runtime.requests.admission": "EngineStatus Reservation",
    "lopa.runtime.requests.handle": "RequestHandle RequestTiming",
    "lopa.runtime.requests.observer": "AdmissionReport EndReport EngineObserver RoundReport",
    "lopa.runtime.requests.job": "PreparedRequest",
    "lopa.runtime.requests.request": "Prompt Request",
    "lopa.runtime.requests.result": "DoneEvent DraftEvent Event GenerationResult TextEvent",
    "lopa.runtime.revision": "Revision",
    "lopa.runtime.sessions.session": "Session",
    "lopa.runtime.state.answer_state": "StopReason",
    "lopa.runtime.state.choice_scores": "ChoiceScore ChoiceScores",
    "lopa.runtime.text.text_with_holes": "Hole TextWithHoles text_with_holes",
    "lopa.runtime.text.tokenizer": "Tokenizer",
}
"""Public names by module. The imports above repeat them for type checkers and editors."""
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


if not TYPE_CHECKING:  # type checkers would accept any misspelled name
    __all__ = sorted([*_MODULES, "__version__"])

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_MODULES[name]), name)
        globals()[name] = value  # later accesses skip __getattr__
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
