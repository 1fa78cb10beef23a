"""Two builds give the same bytes, whenever, wherever and under whatever umask the files were written."""

import os
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.release_programs import release_program
from tests.tools.release.test_source import git
from tools.release.build import Archives, archives_of_tree, check_equal
from tools.release.tree import tree_of_commit

from lopa.runtime.errors import CheckFailedError

PROJECT = Path(__file__).resolve().parents[3]
EPOCH = 1_700_000_000
FILES = {
    "pyproject.toml": '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
    '[project]\nname = "small"\nversion = "1"\n[project.scripts]\nsmall = "small:main"\n'
    '[tool.setuptools.packages.find]\ninclude = ["small*"]\n[tool.setuptools.package-data]\n"*" = ["*.json"]\n',
    "small/__init__.py": "def main() -> None: ...\n",
    "small/data.json": "{}\n",
    "small/deep/__init__.py": "",
    "MANIFEST.in": "graft extra\n",
    "extra/run": "#!/bin/sh\n",
}


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def tree_of_files(folder: Path, umask: int, time: int) -> Path:
    """As a checkout under this umask, in the other order for another time."""
    os.umask(umask)
    for name in sorted(FILES, reverse=time % 2 == 0):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(FILES[name])
        path.chmod(path.stat().st_mode | (0o100 if name == "extra/run" else 0))
        os.utime(path, (time, time))
    return folder


def built(tree: Path, output: Path) -> Archives:
    return archives_of_tree(tree, output, epoch=EPOCH, python=Path(sys.executable))


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> tuple[Archives, Archives]:
    folder, before = tmp_path_factory.mktemp("builds"), os.umask(0o022)
    first = built(tree_of_files(folder / "a", 0o022, 1_650_000_001), folder / "first")
    second = built(tree_of_files(folder / "another place", 0o077, 1_750_000_000), folder / "second")
    os.umask(before)
    return first, second


def test_both_archives_are_the_same(twice: tuple[Archives, Archives]) -> None:
    check_equal(*twice)
    assert {path.suffix for path in (twice[0].wheel, twice[0].sdist)} == {".whl", ".gz"}


def test_they_know_nothing_of_this_machine(twice: tuple[Archives, Archives]) -> None:
    with tarfile.open(twice[1].sdist) as archive:
        members = archive.getmembers()
        assert {(each.uid, each.gid, each.uname, each.gname, each.mtime) for each in members} == {(0, 0, "", "", EPOCH)}
        assert [each.mode for each in members if each.name.endswith("/run")] == [0o755]
        assert {each.mode for each in members} == {0o644, 0o755}
        assert [each.name for each in members] == sorted(each.name for each in members)
    with zipfile.ZipFile(twice[1].wheel) as archive:
        assert {each.date_time[:3] for each in archive.infolist()} == {(2023, 11, 14)}
        assert {"small/data.json", "small/deep/__init__.py"} <= set(archive.namelist())


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_a_byte_more_is_seen(twice: tuple[Archives, Archives], kind: str, tmp_path: Path) -> None:
    original = getattr(twice[1], kind)
    other = Path(shutil.copy(original, tmp_path / original.name))
    other.write_bytes(other.read_bytes() + b"\0")
    with pytest.raises(CheckFailedError, match=f"differ: {original.name}"):
        check_equal(twice[0], replace(twice[1], **{kind: other}))


def test_a_project_that_does_not_build(tmp_path: Path) -> None:
    tree = tree_of_files(tmp_path / "tree", 0o022, 1)
    (tree / "pyproject.toml").write_text("[project]\nname = 3\n")
    with pytest.raises(CheckFailedError, match="setuptools' build_sdist"):
        built(tree, tmp_path / "out")


def test_a_tree_is_the_commit_and_nothing_beside_it(tmp_path: Path) -> None:
    checkout = tree_of_files(tmp_path / "checkout", 0o022, 1)
    (checkout / "link").symlink_to("small")
    git(tmp_path, "init", "--quiet", "checkout")
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "--message", "all")
    (checkout / "not committed").write_text("")
    (checkout / "small" / "data.json").write_text("[]")
    tree = tmp_path / "tree"
    tree.mkdir()
    tree_of_commit(checkout, "HEAD", tree)
    assert {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()} == {*FILES}
    assert (tree / "small" / "data.json").read_text() == "{}\n"
    assert (tree / "link").readlink() == Path("small")


@pytest.mark.release
def test_two_builds_of_this_project_are_the_same(tmp_path: Path) -> None:
    """By the setuptools of a release; the second from files that nobody else may read, years later."""
    python, found = release_program("python"), []
    for name, rights, time in (("first", 0o755, EPOCH), ("second one", 0o700, EPOCH + 10**8)):
        tree = tmp_path / name
        tree.mkdir()
        tree_of_commit(PROJECT, "HEAD", tree)
        for path in tree.rglob("*"):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode & rights)
                os.utime(path, (time, time))
        os.umask(0o777 - rights)
        found.append(archives_of_tree(tree, tmp_path / f"of {name}", epoch=EPOCH, python=python))
    check_equal(*found)
