"""Record of one request for its span. The layers that answer the request fill it in; without a trace they record
nothing."""

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.requests.handle import RequestHandle
from lopa.runtime.requests.result import GenerationResult
from lopa.serve.openai.request import AnswerRequest

_CURRENT: ContextVar["RequestTrace | None"] = ContextVar("_CURRENT", default=None)


@dataclass
class RequestTrace:
    """Facts about a request, as far as they are known."""

    requested: AnswerRequest | None = None
    """Checked request; None before the check."""
    config: GenerationConfig | None = None
    """Checked options of the request and the defaults; None before the check."""
    model: str = ""
    """Name of the model that answers, once the request is checked."""
    handles: Sequence[RequestHandle] = ()
    """Handles of all choices, in order."""
    finish_reasons: dict[int, str] = field(default_factory=dict)
    """Finish reasons of complete choices, by `id` of their result."""
    reasoning_tokens: int = 0
    """Tokens of reasoning in complete choices."""
    error: str | None = None
    """Reason of the first failure, or None."""


def begin_trace() -> RequestTrace:
    """Return a new trace, which the running task and the tasks that it starts fill in."""
    trace = RequestTrace()
    _CURRENT.set(trace)
    return trace


def end_trace() -> None:
    """Record nothing from now on."""
    _CURRENT.set(None)


def trace_request(requested: AnswerRequest, config: GenerationConfig, model: str) -> None:
    """Record a checked request for `model` with the checked values of its options."""
    trace = _CURRENT.get()
    if trace is not None:
        trace.requested, trace.config, trace.model = requested, config, model


def trace_handles(handles: Sequence[RequestHandle]) -> None:
    """Record the handles of all choices."""
    trace = _CURRENT.get()
    if trace is not None:
        trace.handles = handles


def trace_finish(result: GenerationResult, reason: str, *, reasoning_tokens: int) -> None:
    """Record the finish reason of a complete choice, and how many of its tokens are reasoning."""
    trace = _CURRENT.get()
    if trace is not None:
        trace.finish_reasons[id(result)] = reason
        trace.reasoning_tokens += reasoning_tokens


def trace_error(reason: str) -> None:
    """Record why the request failed, as one of few words. The first reason counts."""
    trace = _CURRENT.get()
    if trace is not None and trace.error is None:
        trace.error = reason
