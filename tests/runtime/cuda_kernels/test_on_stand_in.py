"""Recorded decodes on cuda:0 over the stand-in driver, in a process of its own.

`make cuda-decodes` decodes all recordings in this way.
"""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from lopa.runtime.cuda_kernels.kernel_archive import archive_of_file

pytest.importorskip("triton", reason="needs Triton to compile the kernels that the stand-in loads")
ROOT = Path(__file__).resolve().parents[3]


def test_recordings_are_decoded_by_the_operators() -> None:
    """The launches show that the fused graph ran, with the prefix split into parts and rows committed by the kernel."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.runtime.cuda_kernels.stand_in_plugin", "-q", "-s", "-m", ""]
    command += ["-p", "no:cacheprovider", "tests/conformance/test_conformance.py", "-k"]
    command += ["(lopa_bf4_bs32_full or x_long_lopa_bf4_bs16) and 4"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"LOPA_TEST_DEVICE": "cuda:{}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    launches = dict(re.findall(r"'([\w.]+)': (\d+)", done.stdout))
    assert launches.keys() >= {"attention_merge.fp32.64", "commit.8", "statistics_merge.8"}
    assert int(launches["branch_attention.fp32.64"]) == 5 * int(launches["statistics_partials.fp32.8"]) > 0


@pytest.mark.parametrize("constants", [{"ROWS": 8, "WORDS": 32}, {"ROWS": 16, "WORDS": 32}, {}])
def test_kernels_that_other_grids_need_are_refused(constants: dict[str, Any], tmp_path: Path) -> None:
    """Rows would be left out silently."""
    entry = {"file": "a", "entry": "e", "threads": 128, "shared": 0, "parameters": [8] * 11, "constants": constants}
    with zipfile.ZipFile(tmp_path / "sm_90.zip", "w") as archive:
        index = {"format": 1, "target": "sm_90", "cuda": 12000, "driver": "525", "kernels": {"commit.8": entry}}
        archive.writestr("index.json", json.dumps(index))
        archive.writestr("a", b"image")
    if constants.get("ROWS") == 8:
        assert archive_of_file(tmp_path / "sm_90.zip").kernels["commit.8"].arguments == 9
        return
    with pytest.raises(ValueError, match="expected ROWS 8"):
        archive_of_file(tmp_path / "sm_90.zip")
