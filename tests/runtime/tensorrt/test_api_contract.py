"""The TensorRT API that our code uses exists in the oldest and newest supported bindings and in RTX."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.runtime.tensorrt.bindings import PINS, installed_bindings, installed_rtx
from tests.runtime.tensorrt.recorded_api import RTX

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("pin", PINS)
def test_record_matches_the_real_bindings(pin: str, pytestconfig: pytest.Config, tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler to build stand-ins for the libraries")
    major = pin.split("==")[1].split(".")[0]
    assert _record_again(installed_bindings(pin, pytestconfig), tmp_path) == _record(major)


def test_record_matches_the_real_rtx_bindings(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    assert _record_again(installed_rtx(pytestconfig), tmp_path) == _record(RTX)


def _record_again(bindings: Path, folder: Path) -> str:
    recorder = ROOT / "tools" / "vendors" / "record_tensorrt_api.py"
    command = [sys.executable, recorder, bindings, "-o", folder / "api.json"]
    made = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert made.returncode == 0, made.stderr
    return (folder / "api.json").read_text()


def _record(major: str) -> str:
    return (Path(__file__).parent / f"api-{major}.json").read_text()
