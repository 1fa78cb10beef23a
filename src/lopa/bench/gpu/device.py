"""Properties and memory use of a torch device."""

import resource
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch

from lopa.bench.report import Machine, machine_now
from lopa.runtime.device_families import parse_device
from lopa.runtime.errors import MissingBackendError

_SECONDS = 20
"""Timeout of nvidia-smi in seconds."""


@dataclass(frozen=True)
class GpuMachine:
    """Machine and device of a report."""

    device: str
    """Device as the user named it."""
    name: str
    """Name of the GPU, or of the CPU on the device "cpu"."""
    memory: int | None
    """Bytes of GPU memory."""
    driver: str | None
    cuda: str | None
    """CUDA version of the torch build."""
    machine: Machine


def check_device(device: str) -> None:
    """Raise BadInputError unless `device` is "cpu" or "cuda:N", and MissingBackendError if torch does not find it."""
    if device != "cpu" and parse_device(device, "cuda").number >= torch.cuda.device_count():
        raise MissingBackendError(
            f"device {device!r} not found: torch {torch.__version__} finds {torch.cuda.device_count()} CUDA devices",
            expected="an existing CUDA device and a torch build with CUDA",
            remedy="check nvidia-smi, install torch for CUDA, or use --device cpu",
        )


def gpu_machine_now(device: str) -> GpuMachine:
    """Describe the current machine and device."""
    machine = machine_now()
    if device == "cpu":
        return GpuMachine(device, machine.cpu, None, None, None, machine)
    found = torch.cuda.get_device_properties(device)
    return GpuMachine(device, found.name, found.total_memory, _driver_version(), torch.version.cuda, machine)


def memory_in_use(device: str) -> int:
    """Return the bytes in use: by all processes on a GPU, by this process on the CPU."""
    if device == "cpu":
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()
    torch.cuda.synchronize(device)
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def free_unused(device: str) -> None:
    """Return torch's cached memory to the device."""
    if device != "cpu":
        torch.cuda.empty_cache()


def _driver_version() -> str | None:
    """Return the driver version from nvidia-smi, or None if it fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return ended.stdout.split("\n", 1)[0].strip() or None
