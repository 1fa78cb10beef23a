"""Rates are operations and bytes over the minimum seconds. No test measures time."""

from collections.abc import Callable

import pytest

from lopa.bench.forward import machine_rates
from lopa.bench.forward.machine_rates import measure_rates


def test_rates_are_work_over_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the real products and copies, and replace their times by half a second."""
    ran = []

    def half_a_second(work: Callable[[], object]) -> float:
        ran.append(work())
        return 0.5

    monkeypatch.setattr(machine_rates, "min_seconds", half_a_second)
    rates = measure_rates(2)
    assert len(ran) == 3
    assert rates.float32 == rates.int8 == 2 * 2 * 512 * 1024 * 4096
    assert rates.bandwidth == 2 * 2 * 256 * 2**20


def test_every_byte_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = []
    original = machine_rates._copy

    def noted(part: tuple[machine_rates.Array, machine_rates.Array]) -> None:
        original(part)
        copied.append(int(part[1].sum()))

    monkeypatch.setattr(machine_rates, "_copy", noted)
    monkeypatch.setattr(machine_rates, "min_seconds", lambda work: work() and 1.0)
    measure_rates(3)
    assert len(copied) == 3
    assert sum(copied) == 256 * 2**20


def test_the_minimum_of_several_calls_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a clock that only the work advances: by 9 seconds (warm-up), then 0.3, 0.2 and 0.6."""
    now, takes = [0.0], iter((9.0, 0.3, 0.2, 0.6))

    def work() -> None:
        now[0] += next(takes)

    monkeypatch.setattr(machine_rates.time, "perf_counter", lambda: now[0])
    assert machine_rates.min_seconds(work) == pytest.approx(0.2)
