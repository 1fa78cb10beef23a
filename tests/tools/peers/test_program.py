"""`python -m tools.peers`: arguments, what it prepares, and a comparison that continues."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.tools.miniature import MINIATURE
from tools.checkpoint.make import checkpoint_from_likeness
from tools.peers.__main__ import main
from tools.peers.materials import Materials, Needed, prepare_materials, versions_of_peers
from tools.peers.report import report_of_folder
from tools.peers.sides import BASELINE, SIDES, command_of_side, groups_of_sides, needed_materials

from lopa.runtime.errors import BadInputError, MissingBackendError

pytestmark = pytest.mark.slow


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
    genai = next(side for side in SIDES if side.peer == "genai")
    with pytest.raises(MissingBackendError, match="genai/model"):
        command_of_side(genai, materials, threads=1)
    assert versions_of_peers(materials).keys() <= {"openvino"}


def test_missing_preparation_is_reported(tmp_path: Path) -> None:
    words = ["measure", "--work", str(tmp_path / "work"), "--output", str(tmp_path / "out")]
    with pytest.raises(BadInputError, match=r"python -m tools\.peers prepare"):
        CliRunner().invoke(main, words, catch_exceptions=False)


@pytest.mark.parametrize("bundle", ["int4", "int3=out", "int4="])
def test_invalid_bundles_are_rejected(bundle: str, tmp_path: Path) -> None:
    words = ["prepare", "--bundle", bundle, "--work", str(tmp_path / "work")]
    with pytest.raises(BadInputError, match=re.escape(repr(bundle))):
        CliRunner().invoke(main, words, catch_exceptions=False)
    assert list(tmp_path.iterdir()) == []


def test_a_given_folder_must_exist(tmp_path: Path) -> None:
    words = ["prepare", "--checkpoint", str(tmp_path / "nothing"), "--work", str(tmp_path / "work")]
    with pytest.raises(BadInputError, match="nothing is not a folder"):
        CliRunner().invoke(main, words, catch_exceptions=False)


def test_only_what_the_sides_need_is_prepared(tmp_path: Path) -> None:
    by_name = {side.name: side for side in SIDES}
    both = needed_materials([by_name["ours int4 packed"], by_name["OpenVINO int8, our int4 graph"]])
    assert both == Needed(frozenset({"int4"}), frozenset(), genai=False)
    llama = needed_materials([by_name["llama.cpp Q4_0, dream without cache"]])
    assert llama == Needed(frozenset(), frozenset({"q4_0"}), genai=False)
    checkpoint_from_likeness(MINIATURE, tmp_path / "given")
    materials = Materials(tmp_path / "work", tmp_path / "given")
    assert prepare_materials(materials, MINIATURE, both, lambda _: None) == {}
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["bundles"]
    before = materials.bundle("int4").stat().st_ino
    prepare_materials(materials, MINIATURE, both, lambda _: None, renew=False)
    assert materials.bundle("int4").stat().st_ino == before
    given = Materials(tmp_path / "other", tmp_path / "given", {"int4": materials.bundle("int4")})
    prepare_materials(given, MINIATURE, both, lambda _: None)
    assert not (tmp_path / "other").exists()


def test_a_comparison_one_by_one_continues_where_it_stopped(tmp_path: Path) -> None:
    checkpoint_from_likeness(MINIATURE, tmp_path / "given")
    words = ["--checkpoint", tmp_path / "given", "--work", tmp_path / "work", "--output", tmp_path / "out"]
    words += ["--opening", "one-by-one", "--threads", 1, "--size", "2x8", "--prefix", 12, "--forwards", 1, "--tidy"]
    words += ["--side", "ours int4 packed", "--side", "ours int8"]
    for rounds, expected in ((1, [0, 0]), (2, [0, 0, 1, 1]), (2, [0, 0, 1, 1])):
        done = CliRunner().invoke(main, [*map(str, words), "--rounds", str(rounds)], catch_exceptions=False)
        assert done.exit_code == 0
        report = report_of_folder(tmp_path / "out", "peers")
        assert sorted(each.round for each in report.openings) == expected
        assert list((tmp_path / "work" / "bundles").iterdir()) == []  # --tidy
    assert {each.side for each in report.openings} == {"ours int4 packed", "ours int8"}
    assert "Step of 2 x 8, prefix 12" in done.output
