"""The report of costly grammars: its line of random ones on a real bundle."""

from pathlib import Path

from tools.reports.grammar_limits import COSTLY, _line_of_steps


def test_random_grammars_are_decoded_or_refused(tiny_bundle: Path) -> None:
    line = _line_of_steps(tiny_bundle, range(12))
    assert line.startswith("12 random hostile grammars from seed 0: {")
    assert "'refused'" in line
    assert "'eos'" in line
    assert len(COSTLY) == 5
