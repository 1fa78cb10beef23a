"""Invalid arguments of `python -m tools.peers` are rejected before anything is opened."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from tools.peers.__main__ import main
from tools.peers.materials import Materials, versions_of_peers
from tools.peers.sides import BASELINE, SIDES, command_of_side, groups_of_sides

from lopa.runtime.errors import BadInputError, MissingBackendError


@pytest.mark.parametrize("size", ["64", "4x", "axb", "1x2x3", "0x64"])
def test_invalid_sizes_are_rejected(size: str, tmp_path: Path) -> None:
    words = ["measure", "--size", size, "--work", str(tmp_path / "work"), "--output", str(tmp_path / "out")]
    with pytest.raises(BadInputError, match=re.escape(repr(size))):
        CliRunner().invoke(main, words, catch_exceptions=False)
    assert list(tmp_path.iterdir()) == []


def test_unknown_sides_are_rejected() -> None:
    assert "ours int8" in CliRunner().invoke(main, ["measure", "--side", "theirs"]).output


def test_groups_have_every_side_once() -> None:
    groups = groups_of_sides(SIDES)
    assert sorted(side.name for group in groups for side in group) == sorted(side.name for side in SIDES)
    assert [len({side.precision for side in group}) for group in groups] == [1] * 4
    assert groups_of_sides(SIDES[1:2]) == [[BASELINE]]


def test_a_missing_build_of_a_peer_is_reported(tmp_path: Path) -> None:
    llama = next(side for side in SIDES if side.peer == "llama.cpp")
    materials = Materials(tmp_path)
    with pytest.raises(MissingBackendError, match="llama_side"):
        command_of_side(llama, materials, threads=1)
    materials.llama_side.parent.mkdir()
    materials.llama_side.touch()
    with pytest.raises(MissingBackendError, match=r"f32\.gguf"):
        command_of_side(llama, materials, threads=1)
    assert versions_of_peers(materials).keys() <= {"openvino"}


def test_missing_preparation_is_reported(tmp_path: Path) -> None:
    words = ["measure", "--work", str(tmp_path / "work"), "--output", str(tmp_path / "out")]
    with pytest.raises(BadInputError, match=r"python -m tools\.peers prepare"):
        CliRunner().invoke(main, words, catch_exceptions=False)
