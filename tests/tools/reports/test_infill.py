"""The report of infilling counts correct steps, forwards and tokens of both ways to fill a step."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from tools.infill.problems import equations_of, held_out_problems
from tools.reports.infill import main

from lopa import Decoder, Hole

OPTIONS = {"strategy": "threshold", "skip_threshold": 0.9, "confidence": "probability"}


@pytest.fixture(scope="module")
def base_bundle(export_tiny: Callable[..., Path]) -> Path:
    """Bundle of the embedded base without its adapter, which fills some steps correctly."""
    pytest.importorskip("torch")
    return export_tiny(with_logits=False, lora=None)


def test_figures(base_bundle: Path) -> None:
    arguments = [str(base_bundle), "--problems", "6", "--seed", "2"]
    run = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert run.exit_code == 0
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in run.output.splitlines() if "|" in line]
    found = {tuple(cells[:-3]): [float(cell.split()[0]) for cell in cells[-3:]] for cells in lines if "(" in cells[-1]}
    correct, steps, tokens = {}, {}, {}
    problems = held_out_problems(6, 2, is_given=True)
    with Decoder.open(base_bundle, threads=1) as decoder:
        for side in ("both sides", "left side only"):
            results = [
                decoder.fill([each.before, Hole(24), each.after], **OPTIONS)
                if side == "both sides"
                else decoder.generate(each.before, max_new_tokens=24, **OPTIONS)
                for each in problems
            ]
            texts = [result.holes[0] if result.holes else result.text.split(".")[0] + "." for result in results]
            correct[side] = sum(
                equations_of(text) == equations_of(each.steps[each.missing]) and text[-1:] == "."
                for text, each in zip(texts, problems, strict=True)
            )
            steps[side], tokens[side] = sum(each.steps for each in results), sum(each.tokens for each in results)
    for side in correct:
        expected = [100 * correct[side] / 6, steps[side] / 6, tokens[side] / steps[side]]
        assert found["in the question", side] == pytest.approx(expected, abs=0.051)
    assert 0 < correct["left side only"] < 6
    assert found.keys() >= {(name,) for name in ("threshold", "lopa, 1 branch", "lopa, 4 branches", "lopa, 8 branches")}
