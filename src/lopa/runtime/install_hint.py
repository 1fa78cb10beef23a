"""The pip command for what an extra of this project brings. The package itself need not be on any index.

Reads the metadata of the installed distribution, in which pip wrote what every extra requires: so the same command
works beside a checkout and beside a wheel. Installs nothing.
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
    """Something that a user can do where all of its parts are installed."""

    use: str
    """One word for what such an install is for."""
    name: str
    distributions: tuple[str, ...]
    """Packages of pip; "a or b" where one of them serves."""
    remedy: Callable[[], str]
    """Returns what to do about missing parts."""
    programs: tuple[str, ...] = ()
    """Programs on PATH."""
    min_version: tuple[int, int] = (0, 0)
    """Oldest version of every distribution: year and release, or major and minor number."""


def pip_install(*extras: str, also: Sequence[str] = ()) -> str:
    """A command for a shell that installs what `extras` of this project require, and the requirements `also`.

    Without an extra it is what the runtime itself requires. Without metadata (run from a source tree that was never
    installed) it is the command that installs the tree.
    """
    requirements = _requirements_of(extras)
    if not requirements:
        tree = f".[{','.join(extras)}]" if extras else "."
        return _command(["-c", "constraints.txt", tree, *also]) + " in the folder of the source tree"
    return _command([*requirements, *also])


def installed_version(distribution: str) -> str | None:
    """None for one that is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _requirements_of(extras: Sequence[str]) -> list[str]:
    """Of the installed distribution, those that an extra (without any: none) asks for on this platform, each once."""
    try:
        requirements = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    found = (_asked_for(requirement, extras or [None]) for requirement in requirements)
    return list(dict.fromkeys(requirement for requirement in found if requirement is not None))


def _asked_for(requirement: str, extras: Sequence[str | None]) -> str | None:
    """`requirement` as pip takes it on its own, or None when no extra of `extras` asks for it here.

    The project's markers are conditions joined by `and`; one of another kind is left for pip to decide.
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
    return f"{pip_command()} install {' '.join(_quoted(argument) for argument in arguments)}"


def pip_command() -> str:
    """`pip` where the shell would find the one beside this interpreter, else the interpreter by its path."""
    found = shutil.which("pip")
    if found is not None and Path(found).parent == Path(sys.executable).parent:
        return "pip"
    return f"{shlex.quote(sys.executable)} -m pip"


def _quoted(argument: str) -> str:
    """In double quotes, which every shell knows, where a shell would read more than a word."""
    if re.fullmatch(r"[\w./:+=,-]+", argument):
        return argument
    return f'"{argument}"' if not set(argument) & set('"$`\\!') else shlex.quote(argument)
