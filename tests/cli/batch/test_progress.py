"""Progress of a batch in a log: lines with rate and time left, and a summary."""

import re

import pytest

from lopa.cli.batch.progress import BatchProgress
from lopa.cli.batch.resume import KeptResults
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import GenerationConfig, resolve
from lopa.runtime.requests.result import GenerationResult

RESULT = GenerationResult((1,), (2, 3), "text", 1, 2, 2, 2.0, "eos", 0.1, resolve(GenerationConfig()))


@pytest.mark.parametrize("total", [10, None])
def test_progress_lines_appear_during_a_single_prompt(
    total: int | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lopa.cli.batch.progress._LINE_SECONDS", 0.0)
    with BatchProgress(total, KeptResults(results=3, errors=1, end=99), shown=True) as progress:
        progress.step()
        progress.add([RESULT])
        progress.add(BadInputError("x", expected="y", remedy="z"))
    before, *_, last = capsys.readouterr().err.splitlines()
    of_total = "" if total is None else " of 10"
    assert before.startswith(f"3{of_total} prompts, 0 tokens per second")
    assert re.fullmatch(
        rf"5{of_total} prompts, \d+ tokens per second" + ("" if total is None else r", \d:\d\d:\d\d left"), last
    )
    assert progress.summary().startswith("2 prompts (3 kept), 2 errors, 2 tokens, 2.00 tokens per forward, ")
    assert progress.errors == 2


def test_nothing_is_printed_too_early_or_when_quiet(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with BatchProgress(10, KeptResults(), shown=True) as progress:
        progress.add([RESULT])
    monkeypatch.setattr("lopa.cli.batch.progress._LINE_SECONDS", 0.0)
    with BatchProgress(10, KeptResults(), shown=False) as progress:
        progress.add([RESULT])
    assert capsys.readouterr().err == ""
