"""The light runtime: opens bundles, runs their engines, decodes with LoPA.

Knows numpy, onnxruntime and tokenizers. Does not know torch, transformers or onnx, nor how a bundle is made.
"""

from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError, CheckFailedError, DevicesLostError, LopaError, MissingBackendError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.result import DoneEvent, DraftEvent, Event, GenerationResult, TextEvent

__all__ = [
    "BadInputError",
    "CheckFailedError",
    "Decoder",
    "DevicesLostError",
    "DoneEvent",
    "DraftEvent",
    "Event",
    "GenerationConfig",
    "GenerationResult",
    "LopaError",
    "MissingBackendError",
    "TextEvent",
]
