"""Remedies contain a pip command that works although the project is on no index."""

import importlib.metadata
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from lopa.runtime.install_hint import pip_install

PROJECT = Path(__file__).resolve().parents[2]
SOURCES = ("src", "tools", "docs", "README.md")


def named(command: str) -> list[Requirement]:
    """Return the requirements that a shell passes to pip in `command`."""
    _, words = command.split(" install ", 1)
    return [Requirement(word) for word in shlex.split(words)]


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ("export", {"torch", "transformers", "peft", "safetensors", "onnx", "onnx-ir", "onnxscript"}),
        ("plot", {"matplotlib"}),
    ],
)
def test_the_command_names_the_requirements_of_the_extra(extra: str, expected: set[str]) -> None:
    assert {requirement.name for requirement in named(pip_install(extra))} == expected


def test_commands_never_name_the_project() -> None:
    """Somebody else could register the name on an index."""
    for extra in ("export", "gpu", "tensorrt", "plugins", "mpi", "plot", "test"):
        # The path before "install" may contain anything.
        assert "lopa" not in pip_install(extra).partition(" install ")[2]


def test_requirements_of_another_platform_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        importlib.metadata,
        "requires",
        lambda _: [
            'here>=1; sys_platform == "linux" and extra == "x"',
            'there; sys_platform == "win32" and extra == "x"',
            'new~=2.0; python_version >= "3.11" and extra == "x"',
            'other; extra == "y"',
            "always>=3",
        ],
    )
    monkeypatch.setattr(sys, "platform", "linux")
    found = named(pip_install("x"))
    assert [requirement.name for requirement in found] == ["here", "new"]
    assert str(found[1].marker) == 'python_version >= "3.11"'


def test_a_source_tree_that_was_never_installed_names_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError("lopa-export")

    monkeypatch.setattr(importlib.metadata, "requires", absent)
    assert pip_install("export").endswith('pip install -c constraints.txt ".[export]" in the folder of the source tree')


def test_pip_is_the_one_of_this_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", scripts)
    assert pip_install("plot").startswith("pip install ")
    monkeypatch.setenv("PATH", "")
    assert pip_install("plot").startswith(f"{sys.executable} -m pip install ")


def test_no_remedy_and_no_page_installs_this_project_from_an_index() -> None:
    wrong = []
    for name in SOURCES:
        place = PROJECT / name
        for path in [place] if place.is_file() else sorted(place.rglob("*")):
            if path.suffix in (".py", ".md") and re.search(
                r"lopa-export\[|pip install[^\n]* lopa-export\b", path.read_text(encoding="utf-8")
            ):
                wrong.append(str(path))
    assert not wrong


def test_no_extra_installs_another_torch_than_the_constraints() -> None:
    """A newer torch would install gigabytes of CUDA; peft, in the extra `test`, accepts any version."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = dict(
        line.split("==") for line in (PROJECT / "constraints.txt").read_text().splitlines() if not line.startswith("#")
    )
    major, minor, _ = pins["torch"].split(".")
    torches = {"torch", "peft", "accelerate"}
    for extra, requirements in project["optional-dependencies"].items():
        found = {parsed.name: parsed.specifier for parsed in map(Requirement, requirements)}
        if found.keys() & torches:
            assert found["torch"].contains(pins["torch"]), extra
            assert not found["torch"].contains(f"{major}.{int(minor) + 1}.0"), extra
