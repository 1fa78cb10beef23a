"""A device as torch knows it: whether it is there, what it is, and how much of its memory is in use.

Does not measure speed.
"""

import resource
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch

from lopa.bench.machine import Machine, machine_now
from lopa.runtime.device_families import parse_device
from lopa.runtime.errors import MissingBackendError

_SECONDS = 20
"""How long nvidia-smi may take."""


@dataclass(frozen=True)
class GpuMachine:
    """The machine and the device of a report."""

    device: str
    """As the user named it."""
    name: str
    """Of the GPU; of the processor where there is none."""
    memory: int | None
    """Bytes of the GPU."""
    driver: str | None
    cuda: str | None
    """The version that torch was built for."""
    machine: Machine


def check_device(device: str) -> None:
    """Raise BadInputError unless `device` is "cpu" or "cuda:N", MissingBackendError unless torch finds it here."""
    if device != "cpu" and parse_device(device, "cuda").number >= torch.cuda.device_count():
        raise MissingBackendError(
            f"device {device!r}, but torch {torch.__version__} finds {torch.cuda.device_count()} CUDA devices",
            expected="a CUDA device of this number and a torch built for CUDA",
            remedy="check nvidia-smi, install torch for CUDA, or try the program itself with --device cpu",
        )


def gpu_machine_now(device: str) -> GpuMachine:
    """This machine, now."""
    machine = machine_now()
    if device == "cpu":
        return GpuMachine(device, machine.cpu, None, None, None, machine)
    found = torch.cuda.get_device_properties(device)
    return GpuMachine(device, found.name, found.total_memory, _driver_version(), torch.version.cuda, machine)


def memory_in_use(device: str) -> int:
    """Bytes: of the whole GPU, whoever uses them; of this process on the CPU."""
    if device == "cpu":
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()
    torch.cuda.synchronize(device)
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def free_unused(device: str) -> None:
    """Give memory that torch keeps for later back to the device, where others may need it."""
    if device != "cpu":
        torch.cuda.empty_cache()


def _driver_version() -> str | None:
    """As nvidia-smi says; None where it does not."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return ended.stdout.split("\n", 1)[0].strip() or None
