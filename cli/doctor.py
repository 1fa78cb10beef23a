"""lopa-export doctor: what this machine can export, build and run, and what to install for the rest."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil

import click

from lopa.runtime.cuda_calls import CudaError, calls_of_installed_cuda
from lopa.runtime.errors import MissingBackendError

# What a user can do -> the distributions it takes -> how to get them.
_ABILITIES = (
    ("decode (runtime)", ("numpy", "onnxruntime", "tokenizers"), "pip install lopa-export"),
    (
        "export and verify",
        ("torch", "transformers", "safetensors", "onnx", "onnxscript"),
        'pip install "lopa-export[export]"',
    ),
    ("decode over processes (MPI)", ("mpi4py",), 'pip install "lopa-export[mpi]" mpich'),
    (
        "build and run engines with TensorRT",
        ("tensorrt", "cuda-bindings"),
        'pip install "lopa-export[tensorrt]" beside an NVIDIA GPU',
    ),
    ("plot measurements", ("matplotlib",), 'pip install "lopa-export[plot]"'),
    ("run the tests", ("pytest", "hypothesis", "mypy", "ruff"), 'pip install "lopa-export[test]"'),
)


@click.command(name="doctor")
def command() -> None:
    """Say what this machine can export, build and run, and what is missing for the rest."""
    click.echo(f"machine     {platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}")
    click.echo(f"python      {platform.python_version()}")
    for ability, distributions, remedy in _ABILITIES:
        versions = {name: _version(name) for name in distributions}
        missing = [name for name, version in versions.items() if version is None]
        found = ", ".join(f"{name} {version}" for name, version in versions.items() if version is not None)
        click.echo(f"{'missing' if missing else 'ok':11} {ability}: {found or 'nothing of it'}")
        if missing:
            click.echo(f"{'':11} needs {', '.join(missing)}: {remedy}")
    atc = shutil.which("atc")
    click.echo(f"{'missing' if atc is None else 'ok':11} build engines for Ascend: {atc or 'nothing of it'}")
    if atc is None:
        click.echo(
            f"{'':11} needs atc: CANN's toolkit and its set_env.sh, or another machine (docs/ascend.md, --dry-run)"
        )
    for device, state in _devices():
        click.echo(f"{'device':11} {device}: {state}")


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _devices() -> list[tuple[str, str]]:
    devices = [("numpy", "ready (the readable reference, slow)")]
    if importlib.util.find_spec("onnxruntime") is None:
        return [*devices, ("cpu, cuda", "needs onnxruntime: pip install lopa-export")]
    import onnxruntime

    providers = onnxruntime.get_available_providers()
    devices.append(("cpu", f"ready (ONNX Runtime {onnxruntime.__version__})"))
    devices.append(("cuda:N", _cuda_state(providers)))
    acl = importlib.util.find_spec("acl") is not None
    devices.append(
        ("ascend:N", "pyACL is here" if acl else "needs pyACL, which comes with CANN, and an NPU (docs/ascend.md)")
    )
    return devices


def _cuda_state(providers: list[str]) -> str:
    """Whether "cuda:0" can be opened, as far as that is seen without opening a bundle."""
    install = 'pip install "lopa-export[gpu]"'
    if "CUDAExecutionProvider" not in providers:
        return f"no CUDA provider in ONNX Runtime: pip uninstall onnxruntime, then {install} beside a GPU"
    try:
        count = calls_of_installed_cuda()("cudaGetDeviceCount")
    except MissingBackendError:
        return f"no cuda-bindings: {install}"
    except CudaError as error:
        return error.received
    return f"ready ({count} device{'' if count == 1 else 's'})"
