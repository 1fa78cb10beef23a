"""lopa-export doctor: what this install can export, build and run, what it lacks, and which device is fastest."""

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
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

_NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class _Ability:
    """Something that a user can do where all of its parts are."""

    use: str
    """In a word: what an install that has it is for."""
    name: str
    distributions: tuple[str, ...]
    """Installed with pip; "a or b" where one of them serves."""
    remedy: Callable[[], str]
    programs: tuple[str, ...] = ()
    """On PATH."""
    least: tuple[int, int] = (0, 0)
    """Year and release, or major and minor number, that every distribution has to have reached."""


_ABILITIES = (
    _Ability("runtime", "decode (runtime)", ("numpy", "onnxruntime or onnxruntime-gpu", "tokenizers"), pip_install),
    _Ability(
        "export",
        "export and verify",
        ("torch", "transformers", "safetensors", "onnx", "onnx-ir", "onnxscript"),
        partial(pip_install, "export"),
    ),
    _Ability(
        "openvino",
        "decode with OpenVINO (docs/openvino.md)",
        ("openvino",),
        partial(pip_install, "openvino"),
        least=LEAST_VERSION,
    ),
    _Ability(
        "mpi",
        "decode over processes (MPI)",
        ("mpi4py",),
        lambda: f"{pip_install('mpi', also=('mpich',))} (or the machine's own MPI)",
        programs=("mpirun",),
    ),
    _Ability(
        "tensorrt",
        "build and run engines with TensorRT",
        ("tensorrt", "cuda-bindings"),
        lambda: f"{pip_install('tensorrt')} beside an NVIDIA GPU",
    ),
    _Ability(
        "tensorrt-rtx",
        "build engines with TensorRT for RTX (without a GPU too)",
        (
            "tensorrt-rtx-cu13-bindings or tensorrt-rtx-cu12-bindings or tensorrt-rtx",
            "tensorrt-rtx-cu13-libs or tensorrt-rtx-cu12-libs or tensorrt-rtx",
        ),
        partial(pip_install, "tensorrt-rtx"),
    ),
    _Ability(
        "polygraphy",
        "save forwards for Polygraphy (verify --save-cases)",
        ("polygraphy", "onnx-graphsurgeon"),
        partial(pip_install, "polygraphy"),
    ),
    _Ability("plugins", "compile our kernels (docs/plugins.md)", ("torch", "triton"), partial(pip_install, "plugins")),
    _Ability(
        "ascend",
        "build engines for Ascend",
        (),
        lambda: "CANN's toolkit and its set_env.sh, or another machine (docs/ascend.md, --dry-run)",
        programs=("atc",),
    ),
    _Ability(
        "server",
        "serve over HTTP",
        ("starlette", "uvicorn", "httptools", "prometheus-client", "llguidance"),
        partial(pip_install, "serve"),
    ),
    _Ability(
        "ray",
        "serve replicas on Ray (docs/ray.md)",
        ("ray", "starlette", "prometheus-client"),
        partial(pip_install, "ray"),
    ),
    _Ability(
        "grammar",
        "answer by a schema, a regex or a grammar (docs/grammars.md)",
        ("llguidance",),
        partial(pip_install, "grammar"),
    ),
    _Ability("plot", "plot measurements", ("matplotlib",), partial(pip_install, "plot")),
    _Ability("simulate", "simulate replicas (docs/scale.md)", ("simpy",), partial(pip_install, "simulate")),
    _Ability("lm-eval", "evaluate with lm-eval (docs/evaluation.md)", ("lm_eval",), partial(pip_install, "eval")),
    _Ability("tests", "run the tests", ("pytest", "hypothesis", "mypy", "ruff"), partial(pip_install, "test")),
)


@dataclass(frozen=True)
class _Device:
    """A device of this machine, as far as it is known without opening a bundle."""

    name: str
    state: str
    """In words."""
    is_here: bool = True
    """False where its library is not installed, so that only --all lists it."""


@click.command(name="doctor")
@click.argument("bundle", required=False, type=click.Path(path_type=Path))
@click.option("--all", "show_all", is_flag=True, help="Also list what is not installed, and how to install it.")
def command(bundle: Path | None, show_all: bool) -> None:
    """Say what this install can export, build and run.

    With BUNDLE also on which device it is the fastest here: some forwards on each that opens are timed.
    """
    opened = None if bundle is None else Bundle.open(bundle)
    found = [(ability, _parts(ability)) for ability in _ABILITIES]
    complete = [ability for ability, parts in found if not _missing(ability, parts)]
    _say("machine", f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}")
    _say("python", platform.python_version())
    _say("installed", ", ".join(ability.use for ability in complete) or "not even the runtime")
    hidden = 0
    for ability, parts in found:
        missing = _missing(ability, parts)
        is_outdated = any(version is not None and _is_too_old(version, ability) for version in parts.values())
        if missing and not (show_all or ability is _ABILITIES[0] or is_outdated):
            hidden += 1
            continue
        there = ", ".join(part for part in parts.values() if part is not None)
        _say("missing" if missing else "ok", f"{ability.name}: {there or 'nothing of it'}")
        if missing:
            _say("", f"needs {', '.join(missing)}: {ability.remedy()}")
    devices = _devices()
    for device in devices:
        if device.is_here or show_all:
            _say("device", f"{device.name}: {device.state}")
        else:
            hidden += 1
    _say_fastest(opened, None if show_all else [device.name for device in devices if device.is_here])
    if hidden:
        _say("more", f"{hidden} abilities and devices are not installed here: lopa-export doctor --all lists them")


def _say(label: str, text: str) -> None:
    click.echo(f"{label:11} {text}")


def _say_fastest(bundle: Bundle | None, here: Sequence[str] | None) -> None:
    """Time the devices that are `here`, None: every device, of which those that do not open say why."""
    if bundle is None:
        _say("fastest", "lopa-export doctor BUNDLE times some forwards on each device")
        return
    from lopa.cli.start.fastest_device import DEVICES, lines_of_fastest  # which needs what a bundle is opened with

    for line in lines_of_fastest(bundle, DEVICES if here is None else devices_of_names(here), tell_all=here is None):
        _say("fastest", line)


def devices_of_names(names: Sequence[str]) -> list[str]:
    """Return the devices that can be timed, of those that `names` of this command's lines stand for."""
    from lopa.cli.start.fastest_device import DEVICES

    families = tuple(name.removesuffix("N") for name in names)
    return [device for device in DEVICES if device.startswith(families)]


def _parts(ability: _Ability) -> dict[str, str | None]:
    """Return the installed versions of an ability's parts by name, None for a missing part."""
    found = {name: _version(name) for name in ability.distributions}
    return found | {name: _program(name) for name in ability.programs}


def _missing(ability: _Ability, parts: Mapping[str, str | None]) -> list[str]:
    return [name for name, found in parts.items() if found is None or _is_too_old(found, ability)]


def _version(distributions: str) -> str | None:
    """Name and version of the one of "a or b" that Python imports, None when none is installed."""
    names = distributions.split(" or ")
    if "onnxruntime" in names:
        return _imported_onnxruntime()
    for name in names:
        if (version := installed_version(name)) is not None:
            return f"{name} {version}"
    return None


def _imported_onnxruntime() -> str | None:
    """Name and version of the package that `import onnxruntime` finds, as the package itself says them; None for none.

    Several distributions bring a module of that name. Which one is imported depends on sys.path and on which was
    installed last. Metadata of the others stays.
    """
    try:
        from onnxruntime.capi.build_and_package_info import __version__, package_name
    except ImportError:
        return None
    return f"{package_name} {__version__}"


def _is_too_old(found: str, ability: _Ability) -> bool:
    """Whether `found`, name and version of a distribution or the place of a program, is older than `ability` needs."""
    return version_numbers(found.rpartition(" ")[2]) < ability.least


def _program(name: str) -> str | None:
    """Where it is: on PATH, or beside this interpreter, where pip puts programs."""
    return shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))


def _devices() -> list[_Device]:
    devices = [_Device("numpy", "ready (the readable reference, slow)")]
    if importlib.util.find_spec("onnxruntime") is None:
        return [*devices, _Device("cpu, cuda:N", f"needs onnxruntime: {pip_install()}")]
    import onnxruntime

    providers = onnxruntime.get_available_providers()
    devices.append(_Device("cpu", f"ready (ONNX Runtime {onnxruntime.__version__})"))
    devices += _openvino_devices()
    # A GPU whose driver is here is worth a line, also where ONNX Runtime cannot use it yet.
    has_gpu = "CUDAExecutionProvider" in providers or _NVIDIA_DRIVER.exists()
    devices.append(_Device("cuda:N", _cuda_state(providers), has_gpu))
    trt = _version("tensorrt")
    state = "needs TensorRT and an NVIDIA GPU" if trt is None else f"{trt} is here (docs/tensorrt.md)"
    devices.append(_Device("tensorrt:N", state, trt is not None))
    devices.append(_rtx_device())
    acl = importlib.util.find_spec("acl") is not None
    state = "pyACL is here" if acl else "needs pyACL, which comes with CANN, and an NPU (docs/ascend.md)"
    devices.append(_Device("ascend:N", state, acl))
    return devices


def _openvino_devices() -> list[_Device]:
    """Those that OpenVINO lists, and what else it could have; importing it takes a part of a second."""
    from lopa.runtime.openvino.library import openvino_module

    try:
        openvino = openvino_module("openvino:CPU")
    except MissingBackendError as error:
        state = f"{error.received.split(', but ')[-1]}: {error.remedy}"
        return [_Device("openvino:NAME", state, installed_version("openvino") is not None)]
    core = openvino.Core()
    devices = []
    for name in core.available_devices:
        bf16 = "BF16" in map(str, core.get_property(name, "OPTIMIZATION_CAPABILITIES"))
        ran = "" if name == "CPU" else ", never run by us (docs/openvino.md)"
        also = f"; openvino:{name}:bf16 too, rounded, and openvino:{name}:auto, the faster" if bf16 else ""
        state = f"ready (OpenVINO {openvino.__version__.split('-')[0]}){also}{ran}"
        devices.append(_Device(f"openvino:{name}", state))
    return devices


def _rtx_device() -> _Device:
    """Whether "tensorrt-rtx:0" could be opened, as far as that is seen without an engine."""
    name = "tensorrt-rtx:N"
    try:
        version = RTX.module().__version__
    except MissingBackendError as error:
        return _Device(name, f"needs TensorRT for RTX and an RTX GPU: {error.received}", is_here=False)
    try:
        return _Device(name, f"{RTX.title} {version} is here, for {cuda_device(0).name} (docs/tensorrt.md)")
    except MissingBackendError:
        state = f"{RTX.title} {version} is here and builds; engines need an RTX GPU and its driver to run"
        return _Device(name, state)


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
