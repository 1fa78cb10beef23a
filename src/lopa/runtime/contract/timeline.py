"""Spans of work on lanes, recorded while a program runs, and their file for Perfetto and Chrome.

A lane does one thing at a time: the host, or a stage of a pipeline.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

HOST = "host"
"""Lane of all work outside pipeline stages."""


@dataclass(frozen=True)
class Span:
    """One piece of work on a lane."""

    lane: str
    work: str
    step: int
    """Number of the forward, counted from 1."""
    start: float
    """Start in seconds of time.perf_counter, or of another clock that all spans share."""
    end: float


class Timeline:
    """Thread-safe list of spans."""

    spans: list[Span]

    def __init__(self) -> None:
        self.spans = []

    def add(self, span: Span) -> None:
        """Append a span."""
        self.spans.append(span)  # list.append is atomic in CPython, so no lock is needed


def json_from_spans(spans: Sequence[Span]) -> str:
    """Return the spans in the trace event format.

    Events are complete events ("X") in microseconds from the first span, with one thread per lane.
    """
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
    """Return every lane once: the host first, then the others by name."""
    return sorted({span.lane for span in spans}, key=lambda lane: (lane != HOST, lane))
