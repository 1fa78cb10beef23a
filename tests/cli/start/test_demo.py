"""Output of lopa-export demo: no text is cut at usual widths, and without a terminal it consists of plain lines."""

import io
import re

import pytest
from rich.console import Console

from lopa.cli.start.demo import Decoded, table_of_results
from lopa.runtime.generation_config import GenerationConfig, resolve
from lopa.runtime.requests.result import GenerationResult

NAMES = ["D2F", "LoPA, 5 branches"]
LONG = " Omar has 6 balloons and Nina has 6 + 2 = 8 balloons. Together they have 14, and 14 - 6 = 8.\n#### 8\n"


def decoded(verdict: str, seconds: float = 1.5) -> Decoded:
    result = GenerationResult(
        prompt_ids=(1,), token_ids=(1,), text=LONG, steps=124, tokens=1066, generated_positions=1066,
        tokens_per_forward=8.597, stop_reason="eos", seconds=99.0, params=resolve(GenerationConfig()),
    )  # fmt: skip
    return Decoded(result, seconds, verdict)


@pytest.mark.parametrize("width", [80, 100])
def test_the_table_has_time_and_right_answers(width: int) -> None:
    comparisons = [{"D2F": decoded("right"), NAMES[1]: decoded("wrong", 0.25)}] * 2
    comparisons.append({"D2F": decoded("not judged"), NAMES[1]: decoded("right", 0.25)})
    file = io.StringIO()
    Console(file=file, width=width).print(table_of_results(comparisons))
    text = file.getvalue()
    assert "…" not in text
    assert "3 prompts" in text
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "8.60" in line]
    assert rows == [
        ["D2F", "372", "3198", "8.60", "4.50", "2 of 2"],
        [NAMES[1], "372", "3198", "8.60", "0.75", "1 of 3"],
    ]
    alone = io.StringIO()
    Console(file=alone, width=width).print(table_of_results(comparisons[:1]))
    assert re.search(r"\b1 prompt\b(?!s)", alone.getvalue())
