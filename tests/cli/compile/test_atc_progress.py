import pytest

from lopa.cli.compile.atc_progress import AtcProgress


def test_lines_elsewhere_than_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with AtcProgress() as progress:
        for seconds in (0.0, 1.0, 29.5, 30.5, 31.0, 59.0, 60.2, 0.0, 1.0, 30.1):
            progress("gears", seconds)
    assert capsys.readouterr().err.splitlines() == [
        "atc compiles gears; this takes minutes for each gear",
        "atc gears: 30 s",
        "atc gears: 60 s",
        "atc compiles gears; this takes minutes for each gear",
        "atc gears: 30 s",
    ]
