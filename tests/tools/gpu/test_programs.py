"""Programs of the GPU report: their list, failures and time limit, and the exit code of a report with one."""

from pathlib import Path

import pytest
from tests.tools.gpu.test_report import settings_in
from tools.gpu import programs
from tools.gpu.programs import programs_for_device, run_program
from tools.gpu.run import GpuRun
from tools.gpu.stages import check_results

from lopa.bench.gpu.results import ProgramResult
from lopa.runtime.errors import CheckFailedError

DTYPES = ("fp32", "fp16", "bf16", "int8", "int4", "fp8")
BUNDLES = (*DTYPES, *(f"sparse-{dtype}" for dtype in DTYPES))


def test_a_gpu_gets_every_program_and_opens_once_before_the_others() -> None:
    first, second, third, *times = programs_for_device(Path("w"), "cuda:1")
    assert [name for name, _ in first] == [*(f"export {name}" for name in BUNDLES), "kernels natively"]
    assert first[-1][1][-3:] == ("-m", "cuda", "tests/plugins")
    assert [name for name, _ in second] == ["verify fp32"]
    verified = [f"verify {name}" for name in BUNDLES[1:]]
    assert [name for name, _ in third] == ["recorded decodes", "sparse decodes", *verified]
    assert third[0][1][-3:] == ("-m", "slow", "tests/conformance/test_conformance.py")
    assert all(
        arguments[3] == f"w/{name}" and arguments[-2:] == ("--device", "cuda:1")
        for name, (_, arguments) in zip(BUNDLES[1:], third[2:], strict=True)
    )
    assert [name for group in times for name, _ in group] == ["product times", "times of experts"]
    assert times[1][0][1] == ("-m", "tools.gpu.experts", "--device", "cuda:1")


@pytest.mark.parametrize(
    ("arguments", "code", "last", "passed"),
    [
        (("-c", "import os; print('a'); print(os.environ['LOPA_TEST_DEVICE'], end=' \\n\\n')"), 0, "cuda:7", True),
        (("-c", "import sys; print('1 passed'); sys.exit('wrong')"), 1, "wrong", False),
        (("-c", "import time; print('begun', flush=True); time.sleep(60)"), 124, "begun", False),
        (("-c", "print('53 skipped')", "pytest"), 0, "53 skipped", False),
        (("-c", "print('2 passed, 1 skipped')", "pytest"), 0, "2 passed, 1 skipped", True),
        (("-c", ""), 0, "", True),
    ],
)
def test_results(
    arguments: tuple[str, ...], code: int, last: str, passed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "_SECONDS", 3)
    found = run_program(("a program", arguments), "cuda:7", tmp_path)
    assert (found.name, found.code, found.last, found.passed) == ("a program", code, last, passed)
    assert 0 < found.seconds < 30
    assert (tmp_path / "a-program.log").read_text().rstrip().endswith(last)


def test_a_failed_program_fails_the_report(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    for folder in (settings.work, settings.out):
        folder.mkdir()
    run = GpuRun.start(settings, lambda _: None)
    run.add(ProgramResult("verify fp32", 0, 1.0, "verified", passed=True))
    check_results(run.results)
    run.add(ProgramResult("verify int4", 1, 1.0, "error: too far", passed=False))
    with pytest.raises(CheckFailedError, match=r"failed programs: verify int4; .* error: too far"):
        check_results(run.results)
    assert "| verify int4 | 1, FAILED |" in " ".join((settings.out / "gpu.md").read_text().split())
