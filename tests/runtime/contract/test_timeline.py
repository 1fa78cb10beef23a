"""Timeline spans and their file."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
from tests.runtime.random_windows import random_batch
from tests.runtime.sequential import sequential

from lopa.runtime.bundle import Bundle
from lopa.runtime.contract.timeline import HOST, Span, Timeline, json_from_spans
from lopa.runtime.sessions.session import open_session

SPANS = [
    Span("b", "micro-batch 0", 1, 12.5, 12.75),
    Span(HOST, "select", 1, 12.75, 12.7525),
    Span("a", "micro-batch 0", 1, 12.0, 12.5),
]


def test_file_has_the_trace_event_format() -> None:
    events = json.loads(json_from_spans(SPANS))["traceEvents"]
    named = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert named == {0: "host", 1: "a", 2: "b"}
    order = {event["tid"]: event["args"]["sort_index"] for event in events if event["name"] == "thread_sort_index"}
    assert order == {0: 0, 1: 1, 2: 2}
    work = [(event["name"], event["tid"], event["ts"], event["dur"]) for event in events if event["ph"] == "X"]
    assert work == [
        ("step 1: micro-batch 0", 1, 0, 500_000),
        ("step 1: micro-batch 0", 2, 500_000, 250_000),
        ("step 1: select", 0, 750_000, 2_500),
    ]


def test_stages_work_in_order(tiny_staged: Path) -> None:
    """A stage runs one micro-batch at a time, and only after the previous stage has finished it."""
    timeline = Timeline()
    session = open_session(Bundle.open(tiny_staged), "cpu+cpu", threads=1, timeline=timeline)
    rng = np.random.default_rng(0)
    for _ in range(3):
        sequential(session).forward(random_batch(rng, [1], 4, 20, 2))
    session.close()
    lanes = ["cpu+cpu, stage 0", "cpu+cpu, stage 1"]
    expected = [(f"micro-batch {number}", step) for step in (1, 2, 3) for number in range(2)]
    first, second = ([span for span in timeline.spans if span.lane == lane] for lane in lanes)
    for spans in (first, second):
        assert [(span.work, span.step) for span in spans] == expected
        assert all(a.start < a.end <= b.start for a, b in pairwise(spans))
    assert all(a.end <= b.start for a, b in zip(first, second, strict=True))
