"""What may be released: a committed state whose version, changelog and tags agree; everything else is said clearly."""

import subprocess
from pathlib import Path

import pytest
from tools.release.source import check_changelog, source_of_checkout, version_of_text

from lopa.runtime.errors import BadInputError, MissingBackendError

DATED = "# Changelog\n\n## 0.2.0 - 2026-11-22\n\n### Added\n\n## 0.1.0 - 2026-01-01\n"


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", "-C", folder, *who, *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    (folder / "runtime").mkdir(parents=True)
    (folder / "runtime" / "__init__.py").write_text('"""A face."""\n\n__version__ = "0.2.0"\n')
    (folder / "CHANGELOG.md").write_text(DATED)
    git(folder.parent, "init", "--quiet", "checkout")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "first")
    return folder


def test_a_commit_with_its_date_and_version(checkout: Path) -> None:
    source = source_of_checkout(checkout)
    assert source.commit == git(checkout, "rev-parse", "HEAD")
    assert source.epoch == int(git(checkout, "log", "-1", "--format=%ct"))
    assert (source.version, source.tagged) == ("0.2.0", False)
    git(checkout, "tag", "v0.2.0")
    assert source_of_checkout(checkout).tagged
    git(checkout, "tag", "--annotate", "--force", "v0.2.0", "--message", "a tag with an object of its own")
    assert source_of_checkout(checkout).tagged


@pytest.mark.parametrize("name", ["left-over.txt", "CHANGELOG.md"])
def test_files_that_are_not_committed(checkout: Path, name: str) -> None:
    (checkout / name).write_text("other\n")
    with pytest.raises(BadInputError, match=f"not committed: {name}"):
        source_of_checkout(checkout)


def test_a_version_that_was_released_at_another_commit(checkout: Path) -> None:
    git(checkout, "tag", "v0.2.0")
    git(checkout, "commit", "--quiet", "--allow-empty", "--message", "second")
    with pytest.raises(BadInputError, match=r"v0\.2\.0 stands at"):
        source_of_checkout(checkout)


def test_what_is_no_checkout(tmp_path: Path, checkout: Path) -> None:
    with pytest.raises(BadInputError, match="not a git repository") as caught:
        source_of_checkout(tmp_path)
    assert "clone the repository" in caught.value.remedy
    with pytest.raises(BadInputError, match="lies in the repository"):
        source_of_checkout(checkout / "runtime")
    (tmp_path / "empty").mkdir()
    git(tmp_path / "empty", "init", "--quiet")
    with pytest.raises(BadInputError, match="a checkout of this project with a commit"):
        source_of_checkout(tmp_path / "empty")


def test_a_machine_without_git(checkout: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingBackendError, match="git is not installed"):
        source_of_checkout(checkout)


@pytest.mark.parametrize(
    ("text", "tagged", "said"),
    [
        ("## 0.1.0 - 2026-01-01\n", False, r"0 sections of 0\.2\.0"),
        (DATED + "## 0.2.0 - 2026-11-23\n", False, "2 sections"),
        ("## 0.2.0 - soon\n", False, '"unreleased"'),
        ("## 0.2.0 - unreleased\n", True, "the date of the release"),
        ("## 0x2.0 - 2026-11-22\n", False, "0 sections"),
    ],
)
def test_a_changelog_that_does_not_say_it(text: str, tagged: bool, said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        check_changelog(text, "0.2.0", tagged=tagged)


def test_a_changelog_that_says_it() -> None:
    check_changelog(DATED, "0.2.0", tagged=True)
    check_changelog("## 0.2.0 - unreleased\n", "0.2.0", tagged=False)


@pytest.mark.parametrize("text", ["", "version = '1'\n", "__version__ = 1\n"])
def test_a_module_without_a_version(text: str) -> None:
    with pytest.raises(BadInputError, match="__version__"):
        version_of_text(text)
