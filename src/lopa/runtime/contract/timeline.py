"""Who worked when: spans of time on lanes, gathered while a program runs, and their file for Perfetto and Chrome.

Knows lanes by name only. A lane is what can do one thing at a time: the host, or a stage of a pipeline.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

HOST = "host"
"""The lane of everything that is not a stage."""


@dataclass(frozen=True)
class Span:
    """One piece of work."""

    lane: str
    work: str
    step: int
    """Which forward it belongs to, counted from 1."""
    start: float
    """Seconds of time.perf_counter, or of any clock that all spans share."""
    end: float


class Timeline:
    """Gathers spans; any thread may add."""

    spans: list[Span]

    def __init__(self) -> None:
        self.spans = []

    def add(self, span: Span) -> None:
        """Append one."""
        self.spans.append(span)  # atomic in CPython


def json_from_spans(spans: Sequence[Span]) -> str:
    """The trace event format: complete events ("X") in microseconds from the first, a thread for each lane."""
    lanes = lanes_of_spans(spans)
    began = min((span.start for span in spans), default=0.0)
    names = [
        {"ph": "M", "name": kind, "pid": 0, "tid": number, "args": {key: value}}
        for number, lane in enumerate(lanes)
        for kind, key, value in (("thread_name", "name", lane), ("thread_sort_index", "sort_index", number))
    ]
    events = [
        {
            "ph": "X",
            "name": f"step {span.step}: {span.work}",
            "pid": 0,
            "tid": lanes.index(span.lane),
            "ts": round(1e6 * (span.start - began), 3),
            "dur": round(1e6 * (span.end - span.start), 3),
            "args": {"step": span.step, "work": span.work},
        }
        for span in sorted(spans, key=lambda span: span.start)
    ]
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": [*names, *events]})


def lanes_of_spans(spans: Sequence[Span]) -> list[str]:
    """Every lane once: the host, then the others by name."""
    return sorted({span.lane for span in spans}, key=lambda lane: (lane != HOST, lane))
