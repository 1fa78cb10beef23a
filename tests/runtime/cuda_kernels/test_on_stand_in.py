"""Recorded decodes on cuda:0 over the stand-in driver, in a process of its own.

`make cuda-decodes` decodes all recordings in this way.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from coverage import Coverage
from tests.shared_folder import VARIABLE, shared_folder

pytest.importorskip("triton", reason="needs Triton to compile the kernels that the stand-in loads")
ROOT = Path(__file__).resolve().parents[3]
Launches = Callable[..., dict[str, int]]


@pytest.fixture
def launches_of(tmp_path_factory: pytest.TempPathFactory) -> Launches:
    """Return a function that runs tests in a process with the stand-ins, and counts the launches of each kernel."""
    return partial(_launches_of, shared_folder(tmp_path_factory))


def _launches_of(folder: Path, *arguments: str) -> dict[str, int]:
    measured = Coverage.current() is not None  # pytest-cov adds what the other process measures
    command = [sys.executable, *(["-m", "coverage", "run", "--parallel-mode"] if measured else [])]
    command += ["-m", "pytest", "-p", "tests.runtime.cuda_kernels.stand_in_plugin", "-q", "-s", "-m", ""]
    command += ["-p", "no:cacheprovider", *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"LOPA_TEST_DEVICE": "cuda:{}", "OMP_NUM_THREADS": "1", VARIABLE: str(folder)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return {name: int(count) for name, count in re.findall(r"'([\w.]+)': (\d+)", done.stdout)}


def test_sessions_and_recordings(launches_of: Launches) -> None:
    """The launches show that the fused graph ran, with the prefix split into parts and rows committed by the kernel."""
    recordings = "tests/conformance/test_conformance.py::test_published_traces_are_reproduced"
    traces = [f"{recordings}[{name}-4]" for name in ("lopa_bf4_bs32_full", "x_long_lopa_bf4_bs16_block")]
    launches = launches_of("tests/runtime/cuda/packed_session_checks.py", "-k", "not experts", *traces)
    assert launches.keys() >= {"attention_merge.fp32.64", "commit.8", "statistics_merge.8"}
    assert launches["branch_attention.fp32.64"] == 5 * launches["statistics_partials.fp32.8"] > 0


def test_experts(launches_of: Launches) -> None:
    """A layer of experts has a launch of each kernel, whatever the type of its matrices."""
    recordings = "tests/conformance/test_family_conformance.py::test_published_loops_are_reproduced"
    sparse = ("llada2-v20_b16_t09", "sdar_moe-b4_dynamic_t09", "llada_moe-fast_nocache_b32_t09")
    traces = [f"{recordings}[{name}]" for name in sparse]
    launches = launches_of("tests/runtime/cuda/packed_session_checks.py", "-k", "experts or published_loops", *traces)
    ends = (".fp32", "_int4.fp32", "_rounded.int8", "_rounded.fp8")
    for name in ("expert_gate_up", "expert_down"):
        assert sum(launches[name + end] for end in ends) == launches["expert_tasks"] == launches["expert_sum.fp32"] > 0


def test_canvases(launches_of: Launches) -> None:
    """Layers with a sliding window have a kernel of their own. `make cuda-decodes` runs all recordings."""
    launches = launches_of("tests/runtime/cuda/packed_canvas_checks.py", "-k", "default")
    sliding, full = (launches[f"branch_attention.fp32.{name}"] for name in ("sliding.256", "64"))
    assert 2 * full > sliding > full > 0  # 2 of 3 layers, in one network 2 of 4
    assert launches["expert_tasks"] == launches["split_rotary.fp32.norm.64"] == sliding + full


def test_quantized_bundles(launches_of: Launches) -> None:
    """The checks count the launches themselves. `make cuda-decodes` runs them for all families."""
    assert launches_of("tests/runtime/cuda/packed_quantized_checks.py", "-k", "llada2 or sdar or mixed")
