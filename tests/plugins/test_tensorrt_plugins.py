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
# R 2, B 3, W 33, P 192, Q 5, with the sizes of Dream-7B
CASE = {
    "BranchAttention": [
        [[6, 28, 33, 128], "float16"],
        *[[[6, 4, 33, 128], "float16"]] * 2,
        *[[[2, 4, 192, 128], "float16"]] * 2,
        [[2, 3, 33, 33], "bool"],
        [[2, 192], "bool"],
    ],
    "StatisticsPartials": [[[2, 3, 5, 3584], "float16"], [[3584, 152064], "float16"], [[2], "float32"]],
    "StatisticsMerge": [
        *[[[2, 3, 5, 128], "float32"]] * 3,
        [[2, 3, 5, 128, 8], "float32"],
        [[2, 3, 5, 128, 8], "int32"],
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


def test_branch_attention(answers: dict[str, Any]) -> None:
    found = answers["BranchAttention"]
    assert found["outputs"] == [[[6, 28, 33, 128], "HALF"]]
    assert found["numbers"] == [3, 33, 192]  # branches, width, prefix
    launch = found["launch"]
    # 3 x 33 x 7 packed rows in tiles of 64, 4 key-value heads, 2 requests
    assert [launch[f"grid_{axis}"] for axis in "xyz"] == [11, 4, 2]
    assert (found["count"], found["combinations"]) == (3, [8])  # three types, of 8 inputs and outputs


def test_the_token_statistics(answers: dict[str, Any]) -> None:
    partials, merge = answers["StatisticsPartials"], answers["StatisticsMerge"]
    assert [shape for shape, _ in partials["outputs"]] == [*[[2, 3, 5, 128]] * 3, *[[2, 3, 5, 128, 8]] * 2]
    assert [dtype for _, dtype in partials["outputs"]] == ["FLOAT"] * 4 + ["INT32"]
    assert partials["numbers"] == [30, 15]  # rows, and rows per temperature
    assert [partials["launch"][f"grid_{axis}"] for axis in "xyz"] == [1, 128, 1]
    assert merge["outputs"] == [[[2, 3, 5, 8], "INT32"], [[2, 3, 5, 8], "FLOAT"], [[2, 3, 5], "FLOAT"]]
    assert merge["numbers"] == []
    assert [merge["launch"][f"grid_{axis}"] for axis in "xyz"] == [30, 1, 1]


def test_kernels_and_blocks(answers: dict[str, Any]) -> None:
    names = ["branch_attention_kernel", "statistics_partials_kernel", "statistics_merge_kernel"]
    assert [found["kernel"] for found in answers.values()] == names
    for (name, found), outputs in zip(answers.items(), (1, 5, 3), strict=True):
        # Pointers to inputs, numbers, pointers to outputs: all arguments that TensorRT passes.
        assert found["parameters"] == len(CASE[name]) + len(found["numbers"]) + outputs
        assert (found["launch"]["block_x"], found["launch"]["block_y"], found["launch"]["block_z"]) == (128, 1, 1)
        assert 0 < found["launch"]["shared_mem"] <= 48 * 1024


def test_without_tensorrt() -> None:
    if "tensorrt" in sys.modules:
        pytest.skip("needs a machine without TensorRT")
    with pytest.raises(MissingBackendError, match="is not installed"):
        register_plugins((9, 0))
