"""The light runtime: opens bundles, runs their engines, decodes with LoPA.

Knows numpy, onnxruntime and tokenizers. Does not know torch, transformers or onnx, nor how a bundle is made.
"""

import os

from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.step import Step
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
from lopa.runtime.generation_config import BranchChoice, GenerationConfig
from lopa.runtime.grammar.limits import GrammarLimits
from lopa.runtime.requests.handle import RequestHandle
from lopa.runtime.requests.observer import AdmissionReport, EndReport, EngineObserver, RoundReport
from lopa.runtime.requests.prepared import PreparedRequest
from lopa.runtime.requests.reservation import Reservation
from lopa.runtime.requests.result import DoneEvent, DraftEvent, Event, GenerationResult, TextEvent
from lopa.runtime.requests.status import EngineStatus
from lopa.runtime.text.prompt_ids import PromptRequest

# Before onnxruntime is imported, which is when a session is opened. Version 1.31 writes an id of the machine and events
# for its makers into the user's cache, unless it is told otherwise. "0" in the environment allows it.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

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
    "trace_table",
]
