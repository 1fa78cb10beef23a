"""The README is short, its claims match the code, and `make demo` runs. tests/pages runs its examples."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from lopa.runtime.device_families import FAMILIES

PROJECT = Path(__file__).resolve().parents[1]
README = (PROJECT / "README.md").read_text(encoding="utf-8")
REAL_MODEL = README.partition("\n## A real model\n")[2].partition("\n## ")[0]
MAX_LINES = 90
BIN = Path(sys.executable).parent
EXTRAS = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]


def commands(page: str) -> list[str]:
    """Return the commands of a page's shell blocks."""
    return "".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL)).splitlines()


def run(command: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **variables}
    return subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )  # the README's commands are written for a shell


@pytest.mark.parametrize("installs", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_make_demo_exports_verifies_and_decodes(kept_traces_of_processes: dict[str, str], installs: bool) -> None:
    """Run `make demo` in this environment. Only the slow test lets its recipe run pip, which takes half a minute."""
    old = "" if installs else f" -o {BIN.parent}/demo-ready"
    result = run(f"make demo VENV={BIN.parent}{old}", PROJECT, **kept_traces_of_processes)
    assert result.returncode == 0, result.stderr
    assert "cpu agrees with the references" in result.stdout
    steps = dict(re.findall(r"│ (D2F|LoPA, 5 branches) +│ (\d+)", result.stdout))
    assert int(steps["LoPA, 5 branches"]) < int(steps["D2F"])


def test_install_commands_name_extras_that_exist() -> None:
    for page in (PROJECT / "README.md", *(PROJECT / "docs").rglob("*.md"), *(PROJECT / "tools").rglob("*.md")):
        for named in re.findall(r'pip install[^\n`]*"\.\[([\w,]+)\]"', page.read_text(encoding="utf-8")):
            assert set(named.split(",")) <= set(EXTRAS), page


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= MAX_LINES


def test_the_support_matrix_has_every_device() -> None:
    """Check also that a claim about hardware names the card, the date and a version."""
    matrix = README.partition("## Support matrix")[2].partition("\n## ")[0]
    rows = [line for line in matrix.splitlines() if line.startswith("|")]
    for name in FAMILIES:
        assert any(f"`{name}" in row.split("|")[1] for row in rows), name
    on_hardware = r"(make test-\w+`; )?NVIDIA \w+, 20\d\d-\d\d-\d\d, driver [\d.]+(, [\w-]+ [\d.]+)?"
    for row in rows:
        name, executed = (cell.strip() for cell in row.split("|")[1:3])
        if executed and re.search("`(cuda|webgpu|tensorrt|ascend|qnn|openvino:[GN]PU)|kernels", name):
            assert re.fullmatch(on_hardware, executed.lstrip("`")) or executed == "no: `make test-qnn`", row
    pins = dict(
        re.findall(r"^([\w.-]+)==(\S+)$", (PROJECT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    )
    for library in ("onnxruntime", "openvino", "numpy", "mpich", "mpi4py", "starlette", "uvicorn", "triton", "ray"):
        assert pins[library] in matrix, f"{library} {pins[library]}"


def test_the_embedded_model_is_called_a_toy() -> None:
    assert re.search(r"toy of 2\.4 million parameters and is often wrong", README, re.DOTALL)
