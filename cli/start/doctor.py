"""lopa-export doctor: what this machine can export, build and run, what to install for the rest, what is fastest."""

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from lopa.runtime.bundle import Bundle
from lopa.runtime.cuda.calls import CudaError, calls_of_installed_cuda
from lopa.runtime.cuda.driver import cuda_device
from lopa.runtime.errors import MissingBackendError
from lopa.runtime.install_hint import installed_version, pip_command, pip_install
from lopa.runtime.openvino.library import LEAST_VERSION, version_numbers
from lopa.runtime.tensorrt.library import RTX


@dataclass(frozen=True)
class _Ability:
    """Something that a user can do where all of its parts are."""

    name: str
    distributions: tuple[str, ...]
    """Installed with pip; "a or b" where one of them serves."""
    remedy: Callable[[], str]
    programs: tuple[str, ...] = ()
    """On PATH."""
    least: tuple[int, int] = (0, 0)
    """Year and release, or major and minor number, that every distribution has to have reached."""


_ABILITIES = (
    _Ability("decode (runtime)", ("numpy", "onnxruntime or onnxruntime-gpu", "tokenizers"), pip_install),
    _Ability(
        "export and verify",
        ("torch", "transformers", "safetensors", "onnx", "onnxscript"),
        partial(pip_install, "export"),
    ),
    _Ability(
        "decode with OpenVINO (docs/openvino.md)",
        ("openvino",),
        partial(pip_install, "openvino"),
        least=LEAST_VERSION,
    ),
    _Ability(
        "decode over processes (MPI)",
        ("mpi4py",),
        lambda: f"{pip_install('mpi', also=('mpich',))} (or the machine's own MPI)",
        programs=("mpirun",),
    ),
    _Ability(
        "build and run engines with TensorRT",
        ("tensorrt", "cuda-bindings"),
        lambda: f"{pip_install('tensorrt')} beside an NVIDIA GPU",
    ),
    _Ability(
        "build engines with TensorRT for RTX (without a GPU too)",
        (
            "tensorrt-rtx-cu13-bindings or tensorrt-rtx-cu12-bindings or tensorrt-rtx",
            "tensorrt-rtx-cu13-libs or tensorrt-rtx-cu12-libs or tensorrt-rtx",
        ),
        partial(pip_install, "tensorrt-rtx"),
    ),
    _Ability(
        "save forwards for Polygraphy (verify --save-cases)",
        ("polygraphy", "onnx-graphsurgeon"),
        partial(pip_install, "polygraphy"),
    ),
    _Ability("compile our kernels (docs/plugins.md)", ("torch", "triton"), partial(pip_install, "plugins")),
    _Ability(
        "build engines for Ascend",
        (),
        lambda: "CANN's toolkit and its set_env.sh, or another machine (docs/ascend.md, --dry-run)",
        programs=("atc",),
    ),
    _Ability(
        "serve over HTTP", ("starlette", "uvicorn", "httptools", "prometheus-client"), partial(pip_install, "serve")
    ),
    _Ability(
        "serve replicas on Ray (docs/ray.md)", ("ray", "starlette", "prometheus-client"), partial(pip_install, "ray")
    ),
    _Ability(
        "answer by a schema, a regex or a grammar (docs/grammars.md)", ("llguidance",), partial(pip_install, "grammar")
    ),
    _Ability("plot measurements", ("matplotlib",), partial(pip_install, "plot")),
    _Ability("simulate replicas (docs/scale.md)", ("simpy",), partial(pip_install, "simulate")),
    _Ability("evaluate with lm-eval (docs/evaluation.md)", ("lm_eval",), partial(pip_install, "eval")),
    _Ability("run the tests", ("pytest", "hypothesis", "mypy", "ruff"), partial(pip_install, "test")),
)


@click.command(name="doctor")
@click.argument("bundle", required=False, type=click.Path(path_type=Path))
def command(bundle: Path | None) -> None:
    """Say what this machine can export, build and run, and what is missing for the rest.

    With BUNDLE also on which device it is the fastest here: some forwards on each that opens are timed.
    """
    opened = None if bundle is None else Bundle.open(bundle)
    click.echo(f"machine     {platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}")
    click.echo(f"python      {platform.python_version()}")
    for ability in _ABILITIES:
        parts = {name: _version(name) for name in ability.distributions} | {
            name: _program(name) for name in ability.programs
        }
        missing = [name for name, found in parts.items() if found is None or _is_too_old(found, ability)]
        there = ", ".join(found for found in parts.values() if found is not None)
        click.echo(f"{'missing' if missing else 'ok':11} {ability.name}: {there or 'nothing of it'}")
        if missing:
            click.echo(f"{'':11} needs {', '.join(missing)}: {ability.remedy()}")
    for device, state in _devices():
        click.echo(f"{'device':11} {device}: {state}")
    if opened is None:
        click.echo(f"{'fastest':11} not measured: lopa-export doctor BUNDLE times some forwards on each device")
        return
    from lopa.cli.start.fastest_device import lines_of_fastest  # which needs what a bundle is opened with

    for line in lines_of_fastest(opened):
        click.echo(f"{'fastest':11} {line}")


def _version(distributions: str) -> str | None:
    """Name and version of the first that is installed of "a or b", None when none is."""
    for name in distributions.split(" or "):
        if (version := installed_version(name)) is not None:
            return f"{name} {version}"
    return None


def _is_too_old(found: str, ability: _Ability) -> bool:
    """Whether `found`, name and version of a distribution or the place of a program, is older than `ability` needs."""
    return version_numbers(found.rpartition(" ")[2]) < ability.least


def _program(name: str) -> str | None:
    """Where it is: on PATH, or beside this interpreter, where pip puts programs."""
    return shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))


def _devices() -> list[tuple[str, str]]:
    devices = [("numpy", "ready (the readable reference, slow)")]
    if importlib.util.find_spec("onnxruntime") is None:
        return [*devices, ("cpu, cuda:N", f"needs onnxruntime: {pip_install()}")]
    import onnxruntime

    providers = onnxruntime.get_available_providers()
    devices.append(("cpu", f"ready (ONNX Runtime {onnxruntime.__version__})"))
    devices += _openvino_devices()
    devices.append(("cuda:N", _cuda_state(providers)))
    trt = _version("tensorrt")
    devices.append(
        ("tensorrt:N", "needs TensorRT and an NVIDIA GPU" if trt is None else f"{trt} is here (docs/tensorrt.md)")
    )
    devices.append(("tensorrt-rtx:N", _rtx_state()))
    acl = importlib.util.find_spec("acl") is not None
    devices.append(
        ("ascend:N", "pyACL is here" if acl else "needs pyACL, which comes with CANN, and an NPU (docs/ascend.md)")
    )
    return devices


def _openvino_devices() -> list[tuple[str, str]]:
    """Those that OpenVINO lists, and what else it could have; importing it takes a part of a second."""
    from lopa.runtime.openvino.library import openvino_module

    try:
        openvino = openvino_module("openvino:CPU")
    except MissingBackendError as error:
        return [("openvino:NAME", f"{error.received.split(', but ')[-1]}: {error.remedy}")]
    core = openvino.Core()
    states = []
    for name in core.available_devices:
        bf16 = "BF16" in map(str, core.get_property(name, "OPTIMIZATION_CAPABILITIES"))
        ran = "" if name == "CPU" else ", never run by us (docs/openvino.md)"
        also = f"; openvino:{name}:bf16 too, rounded, and openvino:{name}:auto, the faster" if bf16 else ""
        states.append((f"openvino:{name}", f"ready (OpenVINO {openvino.__version__.split('-')[0]}){also}{ran}"))
    return states


def _rtx_state() -> str:
    """Whether "tensorrt-rtx:0" could be opened, as far as that is seen without an engine."""
    try:
        version = RTX.module().__version__
    except MissingBackendError as error:
        return f"needs TensorRT for RTX and an RTX GPU: {error.received}"
    try:
        return f"{RTX.title} {version} is here, for {cuda_device(0).name} (docs/tensorrt.md)"
    except MissingBackendError:
        return f"{RTX.title} {version} is here and builds; engines need an RTX GPU and its driver to run"


def _cuda_state(providers: list[str]) -> str:
    """Whether "cuda:0" can be opened, as far as that is seen without opening a bundle."""
    install = pip_install("gpu")
    if "CUDAExecutionProvider" not in providers:
        return f"no CUDA provider in ONNX Runtime: {pip_command()} uninstall onnxruntime, then {install} beside a GPU"
    try:
        count = calls_of_installed_cuda()("cudaGetDeviceCount")
    except MissingBackendError:
        return f"no cuda-bindings: {install}"
    except CudaError as error:
        return error.received
    return f"ready ({count} device{'' if count == 1 else 's'})"
