"""Errors of WebGPU devices, each in a process of its own, because the plug-in belongs to the process."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lopa.runtime.device_families import ALLOW_SOFTWARE_GPU

_ROOT = Path(__file__).resolve().parents[3]
_GENERATE = (sys.executable, "-m", "lopa.cli.main", "generate", "--device")
_DRIVER_SOURCE = Path(__file__).with_name("losing_driver.c")
_LOSE_DEVICE = """
import sys
from pathlib import Path

import numpy as np
from tests.runtime.random_windows import random_batch

from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import EngineFailedError
from lopa.runtime.sessions.sequential_session import SequentialSession
from lopa.runtime.sessions.session import open_session

session = SequentialSession(open_session(Bundle.open(sys.argv[1]), "webgpu:0"))
rng = np.random.default_rng(0)
session.forward(random_batch(rng, (0,), 2, 32, 4))
session.commit(0, 1, 10)
Path(sys.argv[2]).touch()
try:
    session.forward(random_batch(rng, (0,), 2, 32, 4, starts=[10]))
except EngineFailedError as error:
    print(error.received)
session.close()
print("closed")
"""


def _run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    others = {name: value for name, value in os.environ.items() if name != ALLOW_SOFTWARE_GPU}
    return subprocess.run(
        command, env=others | environment, capture_output=True, text=True, timeout=120, check=False, cwd=_ROOT
    )


def test_without_a_driver(tiny_portable: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_ep_webgpu")
    completed = _run(*_GENERATE, "webgpu:0", str(tiny_portable), "1+1=", VK_ICD_FILENAMES=str(tmp_path / "none.json"))
    assert completed.returncode == 3
    assert "WebGPU offers 0 adapters" in completed.stderr
    assert "a GPU and its Vulkan driver" in completed.stderr


def test_doctor_without_a_driver(tmp_path: Path) -> None:
    """The plug-in offers a software adapter even then."""
    pytest.importorskip("onnxruntime_ep_webgpu")
    doctor = (sys.executable, "-m", "lopa.cli.main", "doctor", "--all", "--allow-software-gpu")
    completed = _run(*doctor, VK_ICD_FILENAMES=str(tmp_path / "none.json"))
    assert completed.returncode == 0, completed.stderr
    (line,) = [each for each in completed.stdout.splitlines() if "webgpu:" in each and each.startswith("device")]
    assert "no Vulkan driver" in line


def test_without_the_plugin(tiny_portable: Path, tmp_path: Path) -> None:
    (tmp_path / "onnxruntime_ep_webgpu.py").write_text("raise ModuleNotFoundError('onnxruntime_ep_webgpu')\n")
    completed = _run(*_GENERATE, "webgpu:0", str(tiny_portable), "1+1=", PYTHONPATH=f"{tmp_path}:{_ROOT / 'src'}")
    assert completed.returncode == 3
    assert "the WebGPU plug-in of ONNX Runtime is not installed" in completed.stderr
    assert "pip install" in completed.stderr


def test_bfloat16_is_refused(tiny_bfloat16: Path) -> None:
    pytest.importorskip("onnxruntime_ep_webgpu")
    completed = _run(*_GENERATE, "webgpu:0", str(tiny_bfloat16), "1+1=")
    assert completed.returncode == 2
    assert "expected: float32 or float16" in completed.stderr


@pytest.mark.parametrize("tiny_quantized", ["fp8"], indirect=True)
def test_fp8_is_refused(tiny_quantized: Path) -> None:
    pytest.importorskip("onnxruntime_ep_webgpu")
    completed = _run(*_GENERATE, "webgpu:0", str(tiny_quantized), "1+1=")
    assert completed.returncode == 2
    assert "because WebGPU has no FP8" in completed.stderr


@pytest.mark.webgpu
def test_software_adapter_is_used_only_on_request(tiny_portable: Path) -> None:
    refused = _run(*_GENERATE, "webgpu:0", str(tiny_portable), "1+1=")
    if refused.returncode == 0:
        pytest.skip("this machine has a real GPU")
    assert refused.returncode == 3
    assert "--allow-software-gpu" in refused.stderr
    allowed = _run(*_GENERATE, "webgpu:0", str(tiny_portable), "--allow-software-gpu", "--max-new-tokens", "4", "1+1=")
    assert allowed.returncode == 0, allowed.stderr
    beyond = _run(*_GENERATE, "webgpu:7", str(tiny_portable), "--allow-software-gpu", "1+1=")
    assert beyond.returncode == 3
    assert "WebGPU offers 1 adapter" in beyond.stderr
    found = _run(sys.executable, "-m", "lopa.cli.main", "doctor", "--allow-software-gpu")
    assert "webgpu:0: ready (software" in found.stdout


@pytest.mark.webgpu
def test_lost_device(tiny_portable: Path, tmp_path: Path) -> None:
    """The driver fails every submission once a file exists."""
    compiler = shutil.which("cc")
    if compiler is None or "VK_ICD_FILENAMES" not in os.environ:
        pytest.skip("needs a C compiler and the driver of make test-webgpu")
    library = tmp_path / "losing_driver.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", str(library), str(_DRIVER_SOURCE), "-ldl"], check=True, timeout=300
    )
    real = json.loads(Path(os.environ["VK_ICD_FILENAMES"]).read_text())
    description = tmp_path / "losing.json"
    description.write_text(json.dumps(real | {"ICD": real["ICD"] | {"library_path": str(library)}}))
    lost = tmp_path / "lost"
    completed = _run(
        *(sys.executable, "-c", _LOSE_DEVICE, str(tiny_portable), str(lost)),
        PYTHONPATH=f"{_ROOT / 'src'}:{_ROOT}",
        VK_ICD_FILENAMES=str(description),
        DRIVER=real["ICD"]["library_path"],
        LOST=str(lost),
        **{ALLOW_SOFTWARE_GPU: "1"},
    )
    assert completed.returncode == 0, completed.stderr
    failure, closed = completed.stdout.splitlines()
    assert failure.startswith("webgpu:0 failed while decoding:")
    assert closed == "closed"
