"""A release needs a clean commit with matching version and changelog, and two builds give the same wheel."""

import subprocess
from hashlib import sha256
from pathlib import Path

import pytest
from tests.release_programs import release_program
from tools.release.__main__ import archives_of_tree, check_changelog, check_clean, output_of

from lopa.runtime.errors import BadInputError, CheckFailedError

PROJECT = Path(__file__).resolve().parents[3]


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", folder, *who, *arguments], check=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    (folder / "src" / "lopa").mkdir(parents=True)
    (folder / "src" / "lopa" / "__init__.py").write_text('__version__ = "0.2.0"\n')
    (folder / "CHANGELOG.md").write_text("# Changelog\n\n## 0.2.0 - unreleased\n\n## 0.1.0 - 2026-01-01\n")
    git(tmp_path, "init", "--quiet", "checkout")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "first")
    return folder


def test_a_clean_commit_with_a_section_is_accepted(checkout: Path) -> None:
    check_clean(checkout)
    check_changelog(checkout)
    (checkout / "left over").write_text("")
    with pytest.raises(BadInputError, match=r"1 uncommitted files, e\.g\. .left over."):
        check_clean(checkout)


def test_a_tag_requires_a_date(checkout: Path) -> None:
    git(checkout, "tag", "v0.2.0")
    with pytest.raises(BadInputError, match=r"exactly one section for 0\.2\.0") as caught:
        check_changelog(checkout)
    assert caught.value.expected == '"## 0.2.0 - " and a date'
    (checkout / "CHANGELOG.md").write_text("## 0.2.0 - 2026-11-22\n")
    check_changelog(checkout)


@pytest.mark.parametrize("text", ["", "## 0x2.0 - unreleased\n", "## 0.2.0 - soon\n", "## 0.2.0 - unreleased\n" * 2])
def test_a_changelog_without_the_version(checkout: Path, text: str) -> None:
    (checkout / "CHANGELOG.md").write_text(text)
    with pytest.raises(BadInputError, match=r"exactly one section for 0\.2\.0"):
        check_changelog(checkout)


def test_failing_programs_are_reported() -> None:
    with pytest.raises(CheckFailedError, match=r"(?s)sh -c echo .*exit code 3: because"):
        output_of("sh", "-c", "echo because >&2; exit 3")


@pytest.mark.release
def test_two_builds_of_this_project_give_the_same_wheel(tmp_path: Path) -> None:
    programs, found = release_program("python").parent, set()
    for name in ("first", "second one"):
        output_of("git", "clone", "--quiet", PROJECT, tmp_path / name)
        wheel, _ = archives_of_tree(tmp_path / name, tmp_path / f"of {name}", "1700000000", programs)
        found.add(sha256(wheel.read_bytes()).hexdigest())
    assert len(found) == 1
