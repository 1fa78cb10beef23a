"""Interpreters are found by what they say; missing programs are named; a wheel is held to the checkout."""

import sys
from pathlib import Path

import pytest
from tools.release.environment import Environment
from tools.release.interpreters import interpreter_here, promised_versions
from tools.release.programs import Programs, output_of
from tools.release.server import url_of_server
from tools.release.smoke import Answers, answers_of_checkout, try_runtime, try_server

from lopa import __version__
from lopa.runtime.errors import CheckFailedError, MissingBackendError

PROJECT = Path(__file__).resolve().parents[3]


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_the_versions_that_the_project_promises() -> None:
    assert promised_versions(PROJECT / "pyproject.toml") == ["3.11", "3.12", "3.13"]


def test_interpreters_on_the_path_and_among_pyenvs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name whose program fails, as pyenv's do for versions that are not chosen, is none."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert interpreter_here("3.99").program is None
    program(tmp_path / "bin" / "python3.99", "echo command not found >&2; exit 127")
    assert interpreter_here("3.99").program is None
    other = program(tmp_path / "pyenv" / "versions" / "3.99.1" / "bin" / "python3.99", "echo 3.98.1")
    assert interpreter_here("3.99").program is None, "another version than its name"
    program(other, "echo 3.99.1")
    assert (interpreter_here("3.99").program, interpreter_here("3.99").version) == (other, "3.99.1")
    first = program(tmp_path / "bin" / "python3.99", "echo 3.99.0")
    assert interpreter_here("3.99").program == first


def test_packaging_tools_that_are_not_there(tmp_path: Path) -> None:
    program(tmp_path / "twine", "")
    with pytest.raises(MissingBackendError, match="without python, validate-pyproject") as caught:
        Programs(tmp_path)
    assert "make release" in caught.value.remedy


def test_a_program_that_fails_is_told_with_what_it_said() -> None:
    with pytest.raises(CheckFailedError, match=r"(?s)a check: exit code 3: .*because"):
        output_of(["sh", "-c", "echo because >&2; exit 3"], what="a check")


@pytest.fixture(scope="module")
def answers(tiny_bundle: Path) -> Answers:
    return answers_of_checkout(tiny_bundle, ["Question: 2 + 3?\nAnswer:", "1"])


@pytest.fixture
def environment() -> Environment:
    """The one that runs this, which has more than a wheel brings."""
    return Environment(Path(sys.prefix), PROJECT / "constraints.txt")


def test_an_environment_with_torch_is_no_runtime_alone(environment: Environment, answers: Answers) -> None:
    with pytest.raises(CheckFailedError, match=r"heavy packages beside the runtime: .*torch"):
        try_runtime(environment, __version__, answers)


def test_a_wheel_of_another_version(environment: Environment, answers: Answers) -> None:
    with pytest.raises(CheckFailedError, match=rf"--version: '{__version__}'\n.*9\.9"):
        try_runtime(environment, "9.9", answers)


def test_a_server_that_does_not_start(environment: Environment, tmp_path: Path) -> None:
    with (
        pytest.raises(CheckFailedError, match=r"(?s)serve ended with 2: .*error"),
        url_of_server(environment, tmp_path / "none", "x"),
    ):
        raise AssertionError("nothing is served")


def test_texts_over_http_are_compared(environment: Environment, answers: Answers) -> None:
    try_server(environment, answers)
    wrong = Answers(answers.bundle, answers.prompts, (*answers.texts[:-1], "another"))
    with pytest.raises(CheckFailedError, match="texts over HTTP"):
        try_server(environment, wrong)
