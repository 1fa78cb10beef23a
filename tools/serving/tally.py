"""What the clients of a soak saw, and whether the server's metrics say the same. Sends nothing."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lopa.serve.openai.options import OURS

_SHOWN = 50


@dataclass
class Tally:
    """Counts of all clients together."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    """What must not have been, in words."""
    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Choices that were read whole, by endpoint and finish_reason."""
    tokens: int = 0
    """Of them."""
    rejected: Counter[str] = field(default_factory=Counter)
    """Refusals, by code."""
    left: int = 0
    """Choices that were let in and whose client went away long before the end."""
    unheard: int = 0
    """Requests whose client went away before it heard anything: let in, turned away or not yet read."""

    def read(self, path: str, choices: Sequence[Mapping[str, Any]]) -> None:
        """An answer was read to its end."""
        for choice in choices:
            self.answers[path.removeprefix("/v1/"), choice["finish_reason"]] += 1
            self.tokens += choice[OURS]["tokens"]

    def fault(self, text: str) -> None:
        """Something was wrong; the first few are kept in words."""
        if len(self.faults) < _SHOWN:
            self.faults.append(text[:500])


def faults_of_metrics(before: Mapping[str, float], after: Mapping[str, float], tally: Tally) -> list[str]:
    """Where the metrics of the time between two readings, with nothing under way at either, differ from the tally."""

    def counted(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    rejections = {name for name in after if name.startswith("lopa_rejected_total")}
    cancelled, seen = counted("lopa_cancelled_total"), tally.answers.total()
    bounds: dict[str, tuple[float, float]] = {
        f'lopa_requests_total{{endpoint="{endpoint}",finish_reason="{reason}"}}': (count, count)
        for (endpoint, reason), count in tally.answers.items()
    }
    bounds |= {
        f'lopa_rejected_total{{reason="{reason}"}}': (count, count + tally.unheard * (reason == "queue_full"))
        for reason, count in tally.rejected.items()
    }
    bounds |= dict.fromkeys(rejections - bounds.keys(), (0, 0))
    bounds |= {
        "lopa_cancelled_total": (tally.left, tally.left + tally.unheard),
        "lopa_request_seconds_count": (seen + cancelled, seen + cancelled),
        "lopa_generated_tokens_total": (tally.tokens, float("inf")),
    }
    wrong = [
        f"{name} counted {counted(name):g}, the clients {lower:g} to {upper:g}"
        for name, (lower, upper) in sorted(bounds.items())
        if not lower <= counted(name) <= upper
    ]
    gauges = ("lopa_requests_running", "lopa_requests_waiting", "lopa_cache_used_ratio", "lopa_engine_failed")
    return wrong + [f"{name} is {after[name]:g} with nothing under way" for name in gauges if after[name]]
