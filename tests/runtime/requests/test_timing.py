"""Moments of requests on the engine's clock."""

import dataclasses
import time
from pathlib import Path

from lopa.runtime.engine import Engine

LONG = {"max_new_tokens": 1500, "strategy": "vanilla", "stop_at_eos": False}


def test_moments_follow_each_other(tiny_bundle: Path) -> None:
    with Engine.open(tiny_bundle, threads=1, max_num_seqs=1) as engine:
        began = time.perf_counter()
        first, second = (engine.submit("2 + 2", max_new_tokens=40, stop_at_eos=False) for _ in range(2))
        results = first.result(), second.result()
        ended = time.perf_counter()
    for handle, result in zip((first, second), results, strict=True):
        timing = handle.timing
        moments = [timing.queued, timing.admitted, timing.prefilled, timing.first_text, timing.ended]
        assert None not in moments
        assert [began, *moments, ended] == sorted([began, *moments, ended])
        assert timing.ended is not None
        assert timing.queued is not None
        assert timing.ended - timing.queued <= result.seconds + 0.1
    assert (second.timing.admitted or 0) >= (first.timing.ended or 0), "one request runs at a time"


def test_copies_share_a_decode_and_have_their_own_ends(tiny_bundle: Path) -> None:
    with Engine.open(tiny_bundle, threads=1) as engine:
        first, second = engine.submit_many(["2 + 2"] * 2, **LONG)
        while first.timing.prefilled is None:
            time.sleep(0.01)
        first.cancel()
        first.result()
        assert second.timing.ended is None
        second.cancel()
        second.result()
    assert (first.timing.admitted, first.timing.prefilled) == (second.timing.admitted, second.timing.prefilled)
    assert (first.timing.ended or 0) < (second.timing.ended or 0)


def test_request_that_never_runs(tiny_bundle: Path) -> None:
    with Engine.open(tiny_bundle, threads=1, max_num_seqs=1) as engine:
        running, waiting = engine.submit("1", **LONG), engine.submit("2", **LONG)
        waiting.cancel()
        assert waiting.result().steps == 0
        running.cancel()
    found = dataclasses.asdict(waiting.timing)
    assert {name for name, moment in found.items() if moment is not None} == {"queued", "ended"}
