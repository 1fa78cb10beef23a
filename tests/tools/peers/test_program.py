"""What `python -m tools.peers` says to wrong arguments, before anything is opened."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from tools.peers.__main__ import main
from tools.peers.sides import BASELINE, SIDES, groups_of_sides

from lopa.runtime.errors import BadInputError


@pytest.mark.parametrize("size", ["64", "4x", "axb", "1x2x3", "0x64"])
def test_a_size_that_is_none(size: str, tmp_path: Path) -> None:
    words = ["measure", "--size", size, "--work", str(tmp_path / "work"), "--output", str(tmp_path / "out")]
    with pytest.raises(BadInputError, match=re.escape(repr(size))):
        CliRunner().invoke(main, words, catch_exceptions=False)
    assert list(tmp_path.iterdir()) == []


def test_a_side_that_is_none() -> None:
    assert "ours int8" in CliRunner().invoke(main, ["measure", "--side", "theirs"]).output


def test_groups_have_every_side_once() -> None:
    groups = groups_of_sides(SIDES)
    assert sorted(side.name for group in groups for side in group) == sorted(side.name for side in SIDES)
    assert [len({side.precision for side in group}) for group in groups] == [1] * 4
    assert groups_of_sides(SIDES[1:2]) == [[BASELINE]]


def test_nothing_was_prepared(tmp_path: Path) -> None:
    words = ["measure", "--work", str(tmp_path / "work"), "--output", str(tmp_path / "out")]
    with pytest.raises(BadInputError, match=r"python -m tools\.peers prepare"):
        CliRunner().invoke(main, words, catch_exceptions=False)
