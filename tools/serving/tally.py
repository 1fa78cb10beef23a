"""Counts of a soak test's clients, and their comparison with the server's metrics."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lopa.serve.openai.body_options import LOPA_FIELD

_MAX_FAULTS = 50


@dataclass
class Tally:
    """Counts of all clients together."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    """Descriptions of failures."""
    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Completely read choices, by endpoint and finish_reason."""
    tokens: int = 0
    """Tokens of these choices."""
    rejected: Counter[str] = field(default_factory=Counter)
    """Rejections by code."""
    left: int = 0
    """Admitted choices whose client left long before the end."""
    unanswered: int = 0
    """Requests whose client left before any reply. They may be admitted, rejected or unread."""
    seconds: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Seconds of each request with its retries, by behaviour."""

    def read(self, path: str, choices: Sequence[Mapping[str, Any]]) -> None:
        """Count a completely read answer."""
        for choice in choices:
            self.answers[path.removeprefix("/v1/"), choice["finish_reason"]] += 1
            self.tokens += choice[LOPA_FIELD]["tokens"]

    def fault(self, text: str) -> None:
        """Record a failure. Only the first ones are kept."""
        if len(self.faults) < _MAX_FAULTS:
            self.faults.append(text[:500])


def faults_of_metrics(before: Mapping[str, float], after: Mapping[str, float], tally: Tally) -> list[str]:
    """Return the differences between the metrics and the tally. The server must be idle at both readings."""

    def counted(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    rejections = {name for name in after if name.startswith("lopa_rejected_total")}
    cancelled, answers_read = counted("lopa_cancelled_total"), tally.answers.total()
    # A client that left without a reply may have left after the end of its request.
    bounds: dict[str, tuple[float, float]] = {
        f'lopa_requests_total{{endpoint="{endpoint}",finish_reason="{reason}"}}': (count, count + tally.unanswered)
        for (endpoint, reason), count in tally.answers.items()
    }
    bounds |= {
        f'lopa_rejected_total{{reason="{reason}"}}': (count, count + tally.unanswered * (reason == "queue_full"))
        for reason, count in tally.rejected.items()
    }
    bounds |= dict.fromkeys(rejections - bounds.keys(), (0, 0))
    bounds |= {
        "lopa_cancelled_total": (tally.left, tally.left + tally.unanswered),
        "lopa_request_seconds_count": (answers_read + cancelled, answers_read + cancelled + tally.unanswered),
        "lopa_generated_tokens_total": (tally.tokens, float("inf")),
    }
    wrong = [
        f"{name} counted {counted(name):g}, expected {low:g} to {high:g}"
        for name, (low, high) in sorted(bounds.items())
        if not low <= counted(name) <= high
    ]
    gauges = ("lopa_requests_running", "lopa_requests_waiting", "lopa_cache_used_ratio", "lopa_engine_failed")
    return wrong + [f"{name} is {after[name]:g} on an idle server" for name in gauges if after[name]]
