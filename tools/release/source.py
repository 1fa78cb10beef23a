"""What is released: a commit of a checkout without changes, its version, and what the changelog and tags say of it."""

import ast
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lopa.runtime.errors import BadInputError, MissingBackendError

CHANGELOG = "CHANGELOG.md"
_VERSION_FILE = "runtime/__init__.py"
_SHOWN = 5


@dataclass(frozen=True)
class Source:
    """A commit that can be released."""

    commit: str
    """40 hexadecimal digits."""
    epoch: int
    """Its date, in seconds since 1970: every time in what is built."""
    version: str
    tagged: bool
    """Whether the tag of the version stands at this commit: then it is a release, else a rehearsal."""


def source_of_checkout(checkout: Path) -> Source:
    """The commit that `checkout` stands at. Raises BadInputError where it cannot be released."""
    top = _git(checkout, "rev-parse", "--show-toplevel")
    if Path(top).resolve() != checkout.resolve():
        raise BadInputError(
            f"{checkout} lies in the repository {top}",
            expected="the root of a checkout of this project",
            remedy=f"start it in {top}",
        )
    changed = _git(checkout, "status", "--porcelain").splitlines()
    if changed:
        more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
        raise BadInputError(
            f"files that are not committed: {', '.join(line[3:] for line in changed[:_SHOWN])}{more}",
            expected="a checkout whose files are those of its commit",
            remedy="commit or remove them (git status)",
        )
    commit = _git(checkout, "rev-parse", "HEAD")
    version = version_of_text(_git(checkout, "show", f"{commit}:{_VERSION_FILE}"))
    tagged = _tag_stands_at(checkout, f"v{version}", commit)
    check_changelog(_git(checkout, "show", f"{commit}:{CHANGELOG}"), version, tagged=tagged)
    return Source(commit, int(_git(checkout, "show", "-s", "--format=%ct", commit)), version, tagged)


def version_of_text(text: str) -> str:
    """`__version__` of the module's text, which is not imported. Raises BadInputError where it has none."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "__version__" for target in node.targets
        ):
            value = ast.literal_eval(node.value)
            if isinstance(value, str):
                return value
    raise BadInputError(
        f"{_VERSION_FILE} without a __version__", expected="a literal, e.g. 0.2.0", remedy="write the version there"
    )


def check_changelog(text: str, version: str, *, tagged: bool) -> None:
    """Raise BadInputError unless there is one section of this version, with a date where the commit is tagged."""
    titles = re.findall(rf"^## {re.escape(version)} - (.+)$", text, re.MULTILINE)
    if len(titles) != 1:
        raise BadInputError(
            f"{CHANGELOG} with {len(titles)} sections of {version}",
            expected=f'one: "## {version} - " and a date, or "unreleased"',
            remedy="write it, or correct __version__",
        )
    dated = re.fullmatch(r"\d{4}-\d{2}-\d{2}", titles[0]) is not None
    if not dated and (tagged or titles[0] != "unreleased"):
        raise BadInputError(
            f"{CHANGELOG}: {version} - {titles[0]}",
            expected="the date of the release, as 2026-11-22" if tagged else 'a date as 2026-11-22, or "unreleased"',
            remedy="write it, commit, and put the tag at that commit" if tagged else "write one of the two",
        )


def _tag_stands_at(checkout: Path, tag: str, commit: str) -> bool:
    """Whether the tag is there. Raises BadInputError where it stands at another commit."""
    if not _git(checkout, "tag", "--list", tag):
        return False
    stands = _git(checkout, "rev-parse", f"{tag}^{{commit}}")
    if stands != commit:
        raise BadInputError(
            f"the tag {tag} stands at {stands[:12]}, this is {commit[:12]}",
            expected="a version that is not released yet, or the commit of its tag",
            remedy=f"raise __version__ in {_VERSION_FILE}, or check out {tag}",
        )
    return True


def _git(checkout: Path, *arguments: str) -> str:
    """What git says, without the last line break."""
    try:
        done = subprocess.run(["git", "-C", checkout, *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise MissingBackendError(
            "git is not installed", expected="git, which knows what is released", remedy="install git"
        ) from error
    if done.returncode != 0:
        raise BadInputError(
            f"git {' '.join(arguments)} in {checkout}: {done.stderr.strip()[-300:]}",
            expected="a checkout of this project with a commit",
            remedy="clone the repository: a source archive alone cannot be released again",
        )
    return done.stdout.rstrip("\n")
