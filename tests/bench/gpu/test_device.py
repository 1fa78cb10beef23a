"""Description of a device. torch.cuda and nvidia-smi are stand-ins, the CPU is real."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lopa.bench.gpu.device import check_device, gpu_machine_now, memory_in_use
from lopa.runtime.errors import BadInputError, MissingBackendError


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = {"cuda:1": SimpleNamespace(name="Stand-in 9000", total_memory=80 << 30)}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties.__getitem__)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", {"cuda:1": (30 << 30, 80 << 30)}.__getitem__)
    monkeypatch.setattr(torch.version, "cuda", "13.0")


def install_nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_a_gpu(two_gpus: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_nvidia_smi(tmp_path, monkeypatch, '[ "$1" = --query-gpu=driver_version ] && printf "580.1\\n580.1\\n"')
    found = gpu_machine_now("cuda:1")
    assert (found.name, found.memory, found.driver, found.cuda) == ("Stand-in 9000", 80 << 30, "580.1", "13.0")
    assert memory_in_use("cuda:1") == 50 << 30


def test_unavailable_devices_are_rejected(two_gpus: None) -> None:
    check_device("cpu")
    check_device("cuda:1")
    with pytest.raises(MissingBackendError, match="2 CUDA devices"):
        check_device("cuda:2")
    check_device("cuda")  # the first
    for device in ("cuda:", "cuda:x", "cuda:0:1", "cpu:0", "tensorrt:0", ""):
        with pytest.raises(BadInputError, match="expected: cuda:N"):
            check_device(device)


@pytest.mark.parametrize("script", ["exit 9", "true"])
def test_failing_nvidia_smi_gives_no_driver(
    script: str, two_gpus: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_nvidia_smi(tmp_path, monkeypatch, script)
    assert gpu_machine_now("cuda:1").driver is None


def test_the_processor() -> None:
    found = gpu_machine_now("cpu")
    assert found.name == found.machine.cpu
    assert found.memory is found.driver is found.cuda is None
    before = memory_in_use("cpu")
    held = np.ones(100 << 20, np.uint8)
    assert 90 << 20 < memory_in_use("cpu") - before < 200 << 20
    del held
