"""Progress of a batch in a log: lines with rate and time left, and a summary."""

import itertools
import re

import pytest

from lopa.cli.batch.decoded_lines import BatchProgress
from lopa.cli.batch.resume import KeptResults
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import GenerationConfig, resolve
from lopa.runtime.requests.result import GenerationResult

RESULT = GenerationResult((1,), (2, 3), "text", 1, 2, 2, 2.0, "eos", 0.1, resolve(GenerationConfig()))


@pytest.mark.parametrize("total", [10, None])
def test_progress_lines_appear_during_a_single_prompt(
    total: int | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(step=61)
    monkeypatch.setattr("lopa.bench.progress._now", lambda: float(next(clock)))
    with BatchProgress(total, KeptResults(results=3, errors=1, end=99), shown=True) as progress:
        progress.step()
        progress.add([RESULT])
        progress.add(BadInputError("x", expected="y", remedy="z"))
    begin, first, *_, last = capsys.readouterr().err.splitlines()
    of_total = "" if total is None else " of 10"
    assert begin == ("prompts" if total is None else "prompts (10)")
    assert first == f"prompts: 3{of_total}, 0 tokens per second"
    left = "" if total is None else r", \d+ min \d+ s left"
    assert re.fullmatch(rf"prompts: 5{of_total}, \d+ tokens per second{left}", last)
    assert progress.summary().startswith("2 prompts (3 kept), 2 errors, 2 tokens, 2.00 tokens per forward, ")
    assert progress.errors == 2


def test_nothing_is_printed_too_early_or_when_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with BatchProgress(10, KeptResults(), shown=True) as progress:
        progress.add([RESULT])
    assert capsys.readouterr().err == "prompts (10)\n"
    with BatchProgress(10, KeptResults(), shown=False) as progress:
        progress.add([RESULT])
    assert capsys.readouterr().err == ""
