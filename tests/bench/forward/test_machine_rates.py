"""The rate of a repeated call is that of the fastest. No test measures time."""

import pytest

from lopa.bench.forward import work as rates


def test_the_minimum_of_several_calls_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a clock that only the work advances: by 9 seconds (warm-up), then 0.3, 0.2 and 0.6."""
    now, takes = [0.0], iter((9.0, 0.3, 0.2, 0.6))

    def work() -> None:
        now[0] += next(takes)

    monkeypatch.setattr(rates.time, "perf_counter", lambda: now[0])
    assert rates.min_seconds(work, 1.0) == pytest.approx(0.2)
