"""lopa-export doctor: installed features, and remedies that work."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from onnxruntime.capi.build_and_package_info import __version__, package_name
from tests.cli.command import lopa_export

from lopa.cli.start import doctor
from lopa.runtime.cuda import cuda_operators, gpu_status
from lopa.runtime.cuda.driver import CudaDevice, cuda_device
from lopa.runtime.cuda_kernels.kernel_archive import KernelArchive
from lopa.runtime.errors import MissingBackendError
from lopa.runtime.install_hint import installed_version, pip_install
from lopa.runtime.tensorrt.tensorrt_library import RTX


def test_doctor_lists_abilities_and_devices() -> None:
    result = lopa_export("doctor", "--all")
    assert result.returncode == 0
    for part in ("python", "decode (runtime): numpy", "export and verify: torch", "Ascend", "cpu: ready", "cuda:N:"):
        assert part in result.stdout
    installed = re.findall(r" install (.*)", result.stdout)
    assert installed
    assert not any("lopa" in words for words in installed)  # no remedy installs this project from an index


RUNTIME = ("numpy", "onnxruntime", "tokenizers")


def only_installed(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Simulate an environment with these distributions and no others."""
    monkeypatch.setattr(doctor, "installed_version", lambda name: installed_version(name) if name in names else None)
    monkeypatch.setattr(doctor, "_program", lambda _: None)
    monkeypatch.setattr(gpu_status, "has_driver", lambda: False)
    monkeypatch.setattr(cuda_operators, "cuda_device", partial(cuda_device, library="none.so"))
    for library in ("openvino", *RTX.modules):  # other tests import them
        monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])


def test_a_runtime_installation_lists_its_uses_and_misses_nothing(
    monkeypatch: pytest.MonkeyPatch, tiny_bundle: Path
) -> None:
    only_installed(monkeypatch, *RUNTIME)
    lines = [line.split(None, 1) for line in lopa_export("doctor").stdout.splitlines()]
    assert [label for label, _ in lines] == [
        *("machine", "python", "lopa", "installed", "ok", "kernels", "kernels"),
        *("device", "device", "fastest", "more"),
    ]
    found = dict(lines)
    assert found["installed"] == "runtime"
    assert found["ok"].startswith("decode (runtime): numpy ")
    assert [text.split(":")[0] for label, text in lines if label == "device"] == ["cpu", "numpy"]
    everything = lopa_export("doctor", "--all").stdout
    hidden = len(re.findall(r"^(?:missing|device) ", everything, re.MULTILINE)) - 2
    assert (
        found["more"] == f"{hidden} abilities and devices are not installed here: lopa-export doctor --all lists them"
    )
    assert len(re.findall("^missing", everything, re.MULTILINE)) == len(doctor.abilities()) - 1
    assert "\nmore" not in everything
    timed = lopa_export("doctor", tiny_bundle).stdout
    assert "not measured" not in timed
    assert re.findall(r"^fastest +(.*)$", timed, re.MULTILINE)[-1] == "cpu is the only device that opens"
    assert "cuda:0: not measured" in lopa_export("doctor", tiny_bundle, "--all").stdout


@pytest.mark.parametrize(
    ("names", "uses"),
    [
        (RUNTIME[:2], "nothing, not even the runtime"),
        ((*RUNTIME, "starlette", "uvicorn", "matplotlib"), "runtime, plot"),
    ],
)
def test_an_installation_lists_only_complete_features(
    names: tuple[str, ...], uses: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_installed(monkeypatch, *names)
    text = lopa_export("doctor").stdout
    assert re.findall("^installed +(.*)$", text, re.MULTILINE) == [uses]
    missing = re.findall("^missing +(.*)$", text, re.MULTILINE)
    assert [line.split(":")[0] for line in missing] == (["decode (runtime)"] if "not even" in uses else [])


def test_a_gpu_that_onnx_runtime_cannot_use_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver is installed, so that the line is shown without --all too."""
    only_installed(monkeypatch, *RUNTIME)
    monkeypatch.setattr(gpu_status, "has_driver", lambda: True)
    assert "cuda:N: no CUDA provider in ONNX Runtime: " in lopa_export("doctor").stdout


@pytest.mark.parametrize(
    ("changes", "operators"),
    [
        ({}, "yes, kernels for sm_90"),
        ({"kernels_for_target": lambda _: "there are none"}, "no, there are none"),
        ({"needs_compilation": lambda _: True}, "yes; Triton compiles their kernels for some minutes when "),
        ({"VARIABLE": "OFF"}, "no, OFF=off"),
    ],
)
def test_each_gpu_has_a_line(changes: dict[str, Any], operators: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says whether the operators run there. Nothing is compiled to learn it."""

    def device(number: int) -> CudaDevice:
        if number == 2:
            raise MissingBackendError("no CUDA device 2", expected="", remedy="")
        return CudaDevice(number, f"GPU {number}", "9.0", 80 << 30, 13000)

    only_installed(monkeypatch, *RUNTIME)
    monkeypatch.setenv("OFF", "off")
    archive = KernelArchive("sm_90", {}, 12000, "525.60.13")
    found = {"cuda_device": device, "cuda_library": object, "kernels_for_target": lambda _: archive}
    for name, value in (found | {"needs_compilation": lambda _: False} | changes).items():
        monkeypatch.setattr(cuda_operators, name, value)
    shown = lopa_export("doctor").stdout
    for number in range(2):
        line = f"cuda:{number}: GPU {number}, compute capability 9.0, driver for CUDA 13.0; this project's operators: "
        assert f"device      {line}{operators}" in shown
    assert "cuda:2" not in shown


@pytest.mark.parametrize("shadowed", [True, False])
def test_the_onnx_runtime_that_is_imported_is_named(shadowed: bool, tmp_path: Path) -> None:
    """A stand-in of the same name, with its own metadata, precedes the package on sys.path."""
    package = tmp_path / "onnxruntime"
    (package / "capi").mkdir(parents=True)
    (package / "capi" / "__init__.py").touch()
    (package / "__init__.py").write_text("__version__ = '9.31.1'\nget_available_providers = list\n")
    (package / "capi" / "build_and_package_info.py").write_text(
        "package_name = 'onnxruntime-gpu'\n__version__ = '9.31.1'\n"
    )
    if not shadowed:  # metadata of a distribution that is not importable
        shutil.rmtree(package)
    metadata = tmp_path / "onnxruntime_gpu-9.31.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: onnxruntime-gpu\nVersion: 9.31.1\n")
    done = subprocess.run(
        [sys.executable, "-c", "from lopa.cli.main import main; main(['doctor'])"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = "onnxruntime-gpu 9.31.1" if shadowed else f"{package_name} {__version__}"
    assert f", {expected}, tokenizers" in done.stdout
    assert "cpu: ready (ONNX Runtime on the processor)" in done.stdout


def test_doctor_runs_without_onnx_runtime() -> None:
    start = "import sys; sys.modules['onnxruntime'] = None; from lopa.cli.main import main; main(['doctor', '--all'])"
    done = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, check=True)
    assert "needs onnxruntime or onnxruntime-gpu" in done.stdout
    assert re.search(r"^device +qnn: .*onnxruntime.*None in sys.modules$", done.stdout, re.MULTILINE)


def test_another_lopa_than_the_imported_one_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not list(doctor._notes_on_import())
    for name in ("src/lopa/__init__.py", "bin/lopa-export"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(doctor, "installed_version", lambda _: "0.0.1")
    named = [re.search("[^ ]*(/src/lopa|/lopa-export|0.0.1)", note)[0] for note in doctor._notes_on_import()]
    assert named == [f"{tmp_path}/src/lopa", f"{tmp_path}/bin/lopa-export", "0.0.1"]


def test_every_extra_is_checked() -> None:
    """The extras for third-party clients and for the pages are excluded, since no command uses them."""
    project = tomllib.loads((Path(__file__).resolve().parents[3] / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"].keys() - {"clients", "docs"}
    remedies = [ability.remedy() for ability in doctor.abilities()]
    assert len(extras) > 10
    for extra in extras:
        assert any(pip_install(extra) in remedy for remedy in remedies), extra
    looked_for = {name for ability in doctor.abilities() for name in ability.distributions}
    assert looked_for >= {"ray", "llguidance", "lm_eval"}


@pytest.mark.parametrize(("version", "state"), [("2025.4.1", "missing"), ("2026.4.0", "ok"), ("2027.0.0", "ok")])
def test_a_too_old_openvino_counts_as_missing(monkeypatch: pytest.MonkeyPatch, version: str, state: str) -> None:
    def found(name: str) -> str | None:
        return version if name == "openvino" else installed_version(name)

    monkeypatch.setattr(doctor, "installed_version", found)
    lines = lopa_export("doctor").stdout.splitlines()
    place = next(i for i, line in enumerate(lines) if "decode with OpenVINO" in line)
    expected = f"decode with OpenVINO (docs/how-to/devices.md): openvino {version}"
    assert lines[place].split() == [state, *expected.split()]
    assert ("needs openvino" in lines[place + 1]) == (state == "missing")
