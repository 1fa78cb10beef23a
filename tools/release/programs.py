"""Programs of others that check a release, in an environment of their own. None is imported."""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lopa.runtime.errors import CheckFailedError, MissingBackendError

_NEEDED = ("python", "twine", "validate-pyproject", "check-wheel-contents", "cyclonedx-py")
_TOLD = 2000


@dataclass(frozen=True)
class Programs:
    """The folder they lie in. Raises MissingBackendError where one is missing."""

    folder: Path

    def __post_init__(self) -> None:
        missing = [name for name in _NEEDED if not (self.folder / name).is_file()]
        if missing:
            raise MissingBackendError(
                f"{self.folder} without {', '.join(missing)}",
                expected="twine and its like",
                remedy="make release, which installs them into .venv-release (tools/release/constraints.txt)",
            )

    def path(self, name: str) -> Path:
        """Of a program."""
        return self.folder / name

    def run(self, name: str, *arguments: str | Path, what: str) -> str:
        """What the program says. Raises CheckFailedError where it fails; `what` names the check."""
        return output_of([self.path(name), *arguments], what=what)


def variables_alone() -> dict[str, str]:
    """The variables of this process but those that lead Python to other packages than an environment's own."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


def output_of(command: Sequence[str | Path], *, what: str) -> str:
    """Both outputs of a program. Raises CheckFailedError where its exit code is not 0."""
    done = subprocess.run(
        command,
        env=variables_alone(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        raise CheckFailedError(
            f"{what}: exit code {done.returncode}: {done.stdout.strip()[-_TOLD:]}",
            expected="exit code 0",
            remedy="see what it said",
        )
    return done.stdout


def check_metadata(programs: Programs, pyproject: Path, archives: Sequence[Path]) -> None:
    """Raise CheckFailedError for metadata that an index would refuse, or a wheel with files of others."""
    programs.run("validate-pyproject", pyproject, what="validate-pyproject")
    programs.run("twine", "check", "--strict", *archives, what="twine check")
    for wheel in (path for path in archives if path.suffix == ".whl"):
        programs.run("check-wheel-contents", wheel, what="check-wheel-contents")
