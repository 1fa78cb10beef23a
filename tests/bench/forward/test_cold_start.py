"""Cold starts run real processes and report their errors. No test measures time."""

import shutil
from pathlib import Path

import pytest

from lopa.bench.forward.cold_start import ColdStart, measure_cold_start, report_from_starts, table_from_cold
from lopa.bench.report import run_now
from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import CheckFailedError


def test_a_start_has_phases_within_its_process(tiny_bundle: Path) -> None:
    start = measure_cold_start(tiny_bundle, ["cpu"], 1)
    assert min(start.imported, start.opened, start.forward) > 0
    assert start.to_first_forward < start.process


def test_errors_of_the_process_are_reported(tiny_bundle: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    (path / "tokenizer.json").unlink()
    with pytest.raises(CheckFailedError, match=r"tokenizer\.json") as caught:
        measure_cold_start(path, ["cpu"], 1)
    assert caught.value.exit_code == 1


def test_the_table_has_medians(tiny_bundle: Path) -> None:
    starts = tuple(ColdStart(0.1 * n, 0.01 * n, 0.001 * n, 1.0 * n) for n in (3, 1, 2))
    run = run_now(Bundle.open(tiny_bundle), device="cpu", threads=1, arguments=["lopa-export"])
    report = report_from_starts(run, starts)
    assert report.to_first_forward_median == pytest.approx(0.222)
    assert [row[1] for row in table_from_cold(report).rows] == ["200", "20", "2", "222", "2000"]


def test_the_device_is_passed_to_the_process(tiny_bundle: Path) -> None:
    with pytest.raises(CheckFailedError, match="cpu:x: unknown device 'cpu:x'\n  expected: cpu, cpu:N") as caught:
        measure_cold_start(tiny_bundle, ["cpu:x"], 1)
    assert "Traceback" not in str(caught.value)
