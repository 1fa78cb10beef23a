"""What an engine tells about its rounds and requests, for metrics. Knows no kind of metrics, and no request's text."""

import logging
from dataclasses import dataclass
from typing import Any, Protocol

from lopa.runtime.checked_values import shown
from lopa.runtime.decoding.decoding import StopReason
from lopa.runtime.errors import BadInputError

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class RoundReport:
    """One round of all requests that ran together."""

    seconds: float
    """Wall time, the joining of new requests and the choices of all included."""
    seconds_outside: float
    """Of `seconds`, those not spent in the session's forwards."""
    requests: int
    """That took part; copies that share a decode are one."""
    real_rows: int
    """Window rows of all branches that were computed."""
    padding_rows: int
    """Rows computed beside them because windows that share a forward have different sizes."""
    prompt_rows: int
    """Rows of prompts that joined for this round, without those found in the store."""


@dataclass(frozen=True)
class AdmissionReport:
    """A request that waits no more: it takes part in the next round."""

    queue_seconds: float
    """Since it was submitted."""
    prompt_tokens: int
    reused_rows: int
    """Of the prompt, found in the store: all or none."""


@dataclass(frozen=True)
class EndReport:
    """A request that has ended, whether it was ever admitted or not."""

    stop_reason: StopReason | None
    """None for one that failed."""
    error: BaseException | None
    """What made it fail."""
    prompt_tokens: int
    tokens: int
    """Of the answer as the result counts them; 0 for one that failed."""
    steps: int
    """Rounds of its decode, also those before it failed."""
    seconds: float
    """Since it was submitted."""
    first_text_seconds: float | None
    """From its submission to the first text; None when there was none."""
    cancelled: bool
    """Whether its handle was cancelled; `stop_reason` says whether in time."""


class EngineObserver(Protocol):
    """Hears of everything on the engine's thread, where it delays every request: it should be quick.

    Copies that share a decode are admitted and end one by one. What it raises harms no request.
    """

    def round_ended(self, report: RoundReport) -> None:
        """After every round."""

    def request_admitted(self, report: AdmissionReport) -> None:
        """Before the first round of a request."""

    def request_ended(self, report: EndReport) -> None:
        """Just before the end is there to be seen in the request's handle; once for every request that was taken."""


def checked_observer(observer: Any) -> EngineObserver | None:
    """`observer` behind a guard, or None for None. Raises BadInputError for what cannot hear of everything."""
    if observer is None:
        return None
    wanted = ("round_ended", "request_admitted", "request_ended")
    missing = [name for name in wanted if not callable(getattr(observer, name, None))]
    if missing or isinstance(observer, type):
        raise BadInputError(
            f"observer {shown(observer)}",
            expected="an object with the functions " + ", ".join(wanted),
            remedy="add " + ", ".join(missing) if missing else "pass an instance, not its class",
        )
    return _Guarded(observer)


class _Guarded:
    """Passes reports on; the first thing that is raised is logged, and nothing goes further."""

    def __init__(self, observer: EngineObserver) -> None:
        self._observer = observer
        self._logged = False

    def round_ended(self, report: RoundReport) -> None:
        self._tell("round_ended", report)

    def request_admitted(self, report: AdmissionReport) -> None:
        self._tell("request_admitted", report)

    def request_ended(self, report: EndReport) -> None:
        self._tell("request_ended", report)

    def _tell(self, name: str, report: object) -> None:
        try:
            getattr(self._observer, name)(report)
        except BaseException:  # even SystemExit: on the engine's thread it would end every request
            if not self._logged:
                self._logged = True
                _LOG.exception("the engine's observer raised in %s; what it raises from now on is not logged", name)
