"""Tests are collected even if optional libraries are missing, and `make test` collects all of them."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from tests.optional_libraries import OPTIONAL

ROOT = Path(__file__).resolve().parents[1]


def collected(*arguments: str, without: tuple[str, ...]) -> "subprocess.CompletedProcess[str]":
    """Return the result of pytest --collect-only in a process where these libraries cannot be imported."""
    program = f"""
import sys, pytest
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {without!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Refuse())
sys.exit(pytest.main(["-q", "-pno:cacheprovider", "-pno:hypothesispytest", "--collect-only", *sys.argv[1:]]))
"""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_tests_of_a_marker_need_no_other_libraries() -> None:
    """Check the collection of `pytest -m cuda tests`, as an example."""
    found = collected(
        "-m", "cuda", "tests/runtime/cuda/test_on_hardware.py", "tests/runtime/grammar/test_state.py",
        "tests/serve/http/test_connections.py", "tests/plugins/test_branch_attention.py",
        "tests/runtime/test_row_sharing.py",
        without=("jsonschema", "openai", "httpx2", "hypothesis"),
    )  # fmt: skip
    assert found.returncode == 0, found.stdout + found.stderr
    assert "tests/runtime/cuda/test_on_hardware.py::" in found.stdout
    for path, library in (
        ("grammar/test_state.py", "jsonschema"),
        ("http/test_connections.py", "openai"),
        ("runtime/test_row_sharing.py", "hypothesis"),  # imported through another module
    ):
        (line,) = [line for line in found.stdout.splitlines() if f"{path}:1:" in line]
        assert line.endswith(f"needs {library}, which is not installed")


def test_a_missing_library_of_the_runtime_is_an_error() -> None:
    found = collected("tests/runtime/grammar/test_state.py", without=("tokenizers",))
    assert found.returncode != 0
    assert "tokenizers" in found.stdout + found.stderr


def test_quick_has_the_core_and_skips_a_test_that_starts_a_process() -> None:
    command = [sys.executable, "-m", "pytest", "--quick", "-q", "-pno:cacheprovider"]
    listed = subprocess.run([*command, "--collect-only"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    folders = {Path(line.partition("::")[0]).parent.name for line in listed.splitlines() if "::" in line}
    assert {"runtime", "decoding", "strategy", "requests"} <= folders
    assert not folders & {"cuda", "serve", "cli", "tests"}
    assert "test_families.py" not in listed
    of_process = "tests/runtime/test_telemetry.py"
    done = subprocess.run([*command, of_process], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "1 skipped" in done
    assert "starts a process" in done


@pytest.mark.skipif(sys.platform != "linux", reason="some tests need Linux")
@pytest.mark.skipif(not Path(sys.prefix, "test-ready").exists(), reason="`make test` did not set this environment up")
def test_every_optional_library_is_installed() -> None:
    """A test module whose library is missing would be skipped unnoticed."""
    assert [name for name in sorted(OPTIONAL) if importlib.util.find_spec(name) is None] == []
