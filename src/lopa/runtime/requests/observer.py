"""Reports of an engine's rounds and requests, e.g. for metrics."""

from dataclasses import dataclass
from typing import Any, Protocol

from lopa.runtime.checked_values import shown
from lopa.runtime.errors import BadInputError
from lopa.runtime.state.answer_state import StopReason


@dataclass(frozen=True)
class RoundReport:
    """One round of all requests that ran together."""

    seconds: float
    """Wall time, including the admission of new requests and the choice of tokens."""
    seconds_outside: float
    """Part of `seconds` outside the session's forwards."""
    requests: int
    """Requests in this round; deduplicated copies count once."""
    real_rows: int
    """Computed window rows of all branches."""
    padding_rows: int
    """Computed padding rows of windows with different sizes."""
    prompt_rows: int
    """Prompt rows of requests admitted for this round, except rows found in the prefix cache."""
    evicted_blocks: int = 0
    """Blocks dropped from the prefix cache since the last round. A prompt that is stored whole is one block."""


@dataclass(frozen=True)
class AdmissionReport:
    """A request that was admitted to the next round."""

    queue_seconds: float
    """Seconds since submission."""
    prompt_tokens: int
    cached_tokens: int
    """Prompt rows found in the prefix cache instead of computed."""


@dataclass(frozen=True)
class EndReport:
    """A request that has ended, whether admitted or not."""

    stop_reason: StopReason | None
    """Reason why the decode stopped; None for a failed request."""
    error: BaseException | None
    """Error of a failed request; None for any other."""
    prompt_tokens: int
    tokens: int
    """Tokens of the answer, as the result counts them; 0 for a failed request."""
    steps: int
    """Rounds of the decode, including rounds before a failure."""
    seconds: float
    """Seconds since submission."""
    first_text_seconds: float | None
    """Seconds from submission to the first text; None without text."""
    cancelled: bool
    """True if the handle was cancelled. `stop_reason` is "cancelled" if that was in time."""


class EngineObserver(Protocol):
    """Receiver of reports. Its methods run on the engine's thread and delay all requests, so they must return quickly.

    Copies that share a decode are admitted and end one by one. Exceptions do not affect requests.
    """

    def round_ended(self, report: RoundReport) -> None:
        """Receive the report of a round."""

    def request_admitted(self, report: AdmissionReport) -> None:
        """Receive the report of a request before its first round."""

    def request_ended(self, report: EndReport) -> None:
        """Receive the report of an accepted request, once, just before its handle is done."""


def check_observer(observer: Any) -> None:
    """Raise BadInputError for an object other than None that lacks one of the methods."""
    if observer is None:
        return
    methods = ("round_ended", "request_admitted", "request_ended")
    missing = [name for name in methods if not callable(getattr(observer, name, None))]
    if missing or isinstance(observer, type):
        raise BadInputError(
            f"invalid observer {shown(observer)}",
            expected="an object with the methods " + ", ".join(methods),
            remedy="add " + ", ".join(missing) if missing else "pass an instance, not its class",
        )
