"""The plugins through the plugin interface of TensorRT's real Python bindings, over stand-ins for its libraries."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.tensorrt.bindings import PINS, installed_bindings

from lopa.plugins.tensorrt_plugins import register_plugins
from lopa.runtime.errors import MissingBackendError

ROOT = Path(__file__).parents[2]
# R 2, B 3, Q 5, with the vocabulary of Dream-7B
CASE = {
    "LogitsPartials": [[[2, 3, 5, 152064], "float16"], [[2], "float32"]],
    "LogitsMerge": [
        *[[[2, 3, 5, 32], "float32"]] * 3,
        [[2, 3, 5, 32, 8], "int32"],
        [[2, 3, 5, 32, 8], "float32"],
    ],
}


@pytest.fixture(scope="module", params=["10", "11"])
def answers(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> dict[str, Any]:
    """Return the output of driven_plugins with the bindings of each major version."""
    (pin,) = (pin for pin in PINS if f"=={request.param}." in pin)
    return _driven(installed_bindings(pin, pytestconfig))


def _driven(bindings: Path) -> dict[str, Any]:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("driven_plugins.py"), bindings, json.dumps(CASE)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": paths, "TRITON_INTERPRET": "0"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_token_statistics(answers: dict[str, Any]) -> None:
    partials, merge = answers["LogitsPartials"], answers["LogitsMerge"]
    assert [shape for shape, _ in partials["outputs"]] == [*[[2, 3, 5, 32]] * 3, *[[2, 3, 5, 32, 8]] * 2]
    assert [dtype for _, dtype in partials["outputs"]] == ["FLOAT"] * 3 + ["INT32", "FLOAT"]
    assert partials["numbers"] == [15, 152064, 4752]  # rows per temperature, vocabulary, columns per split
    assert [partials["launch"][f"grid_{axis}"] for axis in "xyz"] == [30, 32, 1]
    assert (partials["count"], partials["combinations"]) == (3, [7])  # three types of logits, 7 inputs and outputs
    assert merge["outputs"] == [[[2, 3, 5, 8], "INT64"], [[2, 3, 5, 8], "FLOAT"], [[2, 3, 5], "FLOAT"]]
    assert merge["numbers"] == [32]  # splits
    assert [merge["launch"][f"grid_{axis}"] for axis in "xyz"] == [30, 1, 1]


def test_kernels_and_blocks(answers: dict[str, Any]) -> None:
    names = ["statistics_partials_kernel", "statistics_merge_kernel"]
    assert [found["kernel"] for found in answers.values()] == names
    for (name, found), outputs in zip(answers.items(), (5, 3), strict=True):
        # Pointers to inputs, numbers, pointers to outputs: all arguments that TensorRT passes.
        assert found["parameters"] == len(CASE[name]) + len(found["numbers"]) + outputs
        assert (found["launch"]["block_x"], found["launch"]["block_y"], found["launch"]["block_z"]) == (32, 1, 1)
        assert found["launch"]["shared_mem"] <= 48 * 1024


def test_without_tensorrt() -> None:
    if "tensorrt" in sys.modules:
        pytest.skip("needs a machine without TensorRT")
    with pytest.raises(MissingBackendError, match="is not installed"):
        register_plugins((9, 0))
