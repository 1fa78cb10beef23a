"""NVIDIA's Polygraphy, as a process, over the real TensorRT for RTX: it parses and builds our graphs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.buckets import bucket
from tests.runtime.tensorrt.bindings import installed_rtx

from lopa.export.replay.forwards_folder import shape_options
from lopa.runtime.accelerator.device_forward import GraphArrays
from lopa.runtime.bundle import Bundle

pytestmark = pytest.mark.tensorrt_rtx

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "engines.md"
COMMANDS = re.findall(r"^(POLYGRAPHY_USE_TENSORRT_RTX=1 polygraphy .*?)  # needs the wheels$", PAGE.read_text(), re.M)
POLYGRAPHY = "import sys; from polygraphy.tools import main; sys.exit(main())"
"""Program of Polygraphy's command, whose script may be installed for another Python."""


@pytest.fixture
def environment(pytestconfig: pytest.Config, tmp_path: Path) -> dict[str, str]:
    """Return the environment with the wheels, the module that the page mentions, and the command."""
    pytest.importorskip("polygraphy")
    words = re.search(r"`(from tensorrt_rtx_bindings\s+import \*)`\s+and\s+`(from .*?)`", PAGE.read_text())
    assert words is not None
    modules, programs = tmp_path / "modules", tmp_path / "programs"
    modules.mkdir()
    (modules / "tensorrt_rtx.py").write_text(f"{' '.join(words[1].split())}\n{words[2]}\n")
    programs.mkdir()
    (programs / "polygraphy").write_text(f"#!/bin/sh\nexec {sys.executable} -c '{POLYGRAPHY}' \"$@\"\n")
    (programs / "polygraphy").chmod(0o755)
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (modules, installed_rtx(pytestconfig)))),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    }


def _run(command: str, bundle: Path, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command of the page in `folder`, which gets the shape options of one small shape bucket."""
    opened = Bundle.open(bundle)
    shapes = GraphArrays(opened.manifest).input_shapes(bucket(1, 2, 32, 64))
    (folder / "trt-shapes.txt").write_text(shape_options([{name: np.empty(each) for name, each in shapes.items()}]))
    line = command.replace("BUNDLE/model.onnx", str(opened.graph)).replace("CASES", str(folder))
    return subprocess.run(
        line, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


def test_the_page_inspects_and_builds() -> None:
    assert [" ".join(command.split()[1:3]) for command in COMMANDS] == ["polygraphy inspect", "polygraphy convert"]


@pytest.mark.parametrize("command", COMMANDS, ids=["inspect", "convert"])
def test_commands_of_the_page(command: str, tiny_bfloat16: Path, environment: dict[str, str], tmp_path: Path) -> None:
    done = _run(command, tiny_bfloat16, tmp_path, environment)
    assert done.returncode == 0, done.stdout + done.stderr
    plan = tmp_path / "engine.plan"
    if "inspect" in command:
        assert "Graph is fully supported by TensorRT" in done.stdout
    else:
        assert plan.read_bytes().startswith(b"vtrt")
