"""The report of infilling counts correct steps, forwards and tokens of both ways to fill a step."""

import re
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
    found = {tuple(cells[:-4]): [float(cell.split()[0]) for cell in cells[-4:]] for cells in lines if "(" in cells[-1]}
    problems = held_out_problems(6, 2, is_given=True)
    asked = [equations_of(each.steps[each.missing])[0] for each in problems]
    with Decoder.open(base_bundle, threads=1) as decoder:
        both = [decoder.fill([each.before, Hole(24), each.after], **OPTIONS) for each in problems]
        left = [decoder.generate(each.before, max_new_tokens=24, **OPTIONS) for each in problems]
    texts = {
        "both sides": [holes[0] if (holes := each.holes) else "" for each in both],
        "left side only": [re.sub(r"\..*", ".", each.text, flags=re.DOTALL) for each in left],
    }
    for side, results in (("both sides", both), ("left side only", left)):
        equations = [equations_of(text) if text.endswith(".") else [] for text in texts[side]]
        correct = sum(one == [other] for one, other in zip(equations, asked, strict=True))
        same_result = sum(len(one) == 1 and one[0][3] == other[3] for one, other in zip(equations, asked, strict=True))
        steps, tokens = sum(each.steps for each in results), sum(each.tokens for each in results)
        expected = [100 * correct / 6, 100 * same_result / 6, steps / 6, tokens / steps]
        assert found["in the question", side] == pytest.approx(expected, abs=0.051)
        assert 0 < same_result < 6
    assert found.keys() >= {(name,) for name in ("threshold", "lopa, 1 branch", "lopa, 4 branches", "lopa, 8 branches")}
