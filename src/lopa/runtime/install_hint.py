"""The pip command that installs the requirements of an extra.

The requirements come from the metadata of the installed distribution. The command therefore works for checkouts and
wheels, and the package itself need not be on an index. Nothing is installed here.
"""

import importlib.metadata
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

DISTRIBUTION = "lopa-export"
_OF_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")
_OF_PLATFORM = re.compile(r"""sys_platform\s*==\s*["']([^"']+)["']""")


@dataclass(frozen=True)
class Ability:
    """A feature that is available if all of its parts are installed."""

    use: str
    """Purpose of the installation, as one word."""
    name: str
    distributions: tuple[str, ...]
    """pip packages; "a or b" for alternatives."""
    remedy: Callable[[], str]
    """Function that returns the instructions for installing missing parts."""
    programs: tuple[str, ...] = ()
    """Required programs on PATH."""
    min_version: tuple[int, int] = (0, 0)
    """Minimum version of every distribution: year and release, or major and minor number."""


def pip_install(*extras: str, also: Sequence[str] = ()) -> str:
    """Return a shell command that installs the requirements of `extras` and the packages in `also`. Without extras it
    installs the requirements of the runtime. In a source tree that was never installed it installs the tree, because
    there is no metadata.
    """
    requirements = _requirements_from_extras(extras)
    if not requirements:
        tree = f".[{','.join(extras)}]" if extras else "."
        return _command(["-c", "constraints.txt", tree, *also]) + " in the folder of the source tree"
    return _command([*requirements, *also])


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _requirements_from_extras(extras: Sequence[str]) -> list[str]:
    """Return the requirements of `extras` on this platform, each once. Without extras, return the requirements of the
    runtime.
    """
    try:
        requirements = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    found = (_applicable_requirement(requirement, extras or [None]) for requirement in requirements)
    return list(dict.fromkeys(requirement for requirement in found if requirement is not None))


def _applicable_requirement(requirement: str, extras: Sequence[str | None]) -> str | None:
    """Return `requirement` without its marker for extras, or None if no extra of `extras` needs it on this platform.

    The project's markers are conditions joined by `and`. Other conditions are left for pip to evaluate.
    """
    name, _, marker = requirement.partition(";")
    left = []
    extra = None
    for condition in filter(None, (part.strip(" ()") for part in marker.split(" and "))):
        if found := _OF_EXTRA.fullmatch(condition):
            extra = found[1]
        elif found := _OF_PLATFORM.fullmatch(condition):
            if found[1] != sys.platform:
                return None
        else:
            left.append(condition)
    if extra not in extras:
        return None
    return "; ".join(filter(None, (name.strip(), " and ".join(left))))


def _command(arguments: Sequence[str]) -> str:
    return f"{pip_command()} install {' '.join(_quote(argument) for argument in arguments)}"


def pip_command() -> str:
    """Return `pip` if the shell finds the one next to this interpreter, otherwise the interpreter's path with -m
    pip."""
    found = shutil.which("pip")
    if found is not None and Path(found).parent == Path(sys.executable).parent:
        return "pip"
    return f"{shlex.quote(sys.executable)} -m pip"


def _quote(argument: str) -> str:
    """Return `argument` quoted for a shell if it is more than one word, in double quotes if possible."""
    if re.fullmatch(r"[\w./:+=,-]+", argument):
        return argument
    return f'"{argument}"' if not set(argument) & set('"$`\\!') else shlex.quote(argument)
