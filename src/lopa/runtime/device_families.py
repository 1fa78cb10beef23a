"""Records of the device families, and the parser of device names ("cuda:0", "cpu:0-3", "openvino:CPU:bf16").

Sessions, options and their help, completion, doctor and the default number of branches all read FAMILIES. A new family
needs a record here, a module with its session, and an extra if it needs a library.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from lopa.runtime.errors import BadInputError
from lopa.runtime.install_hint import Ability, pip_command, pip_install

STAGE_SEPARATOR = "+"
"""Separator between the devices of a pipeline's stages."""
_NUMBER = r"(:\d{1,4})?"
"""Suffix of devices with a number. A name without it means device 0."""
ALLOW_SOFTWARE_GPU = "ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER"
"""Environment variable of ONNX Runtime's WebGPU plug-in: 1 allows adapters that compute on the processor. The plug-in
reads it when it is registered."""


@dataclass(frozen=True, kw_only=True)
class DeviceFamily:
    """A family of devices that one backend opens."""

    name: str
    """First part of every device name, before the colon."""
    description: str
    """Noun phrase with library and hardware."""
    syntax: str
    """Device names in help and errors, with placeholders."""
    suffix: str = ""
    """Regular expression of the suffix after `name`, colon included."""
    examples: Sequence[str]
    """Names for shell completion; errors show the first one."""
    session_module: str
    """Module with `open_session`, a lopa.runtime.sessions.session.SessionFactory, imported on first use."""
    stage_module: str | None = None
    """Module with `forward_from_bundle`, a StageFactory of the same file; None if no device can be a pipeline stage."""
    status_module: str | None = None
    """Module with `find_devices`, which takes the family's name and returns a DeviceStatus for each device or kind of
    device. If None, doctor reports one device, which is ready if all parts of `ability` are installed."""
    caches: Literal["host", "device", "rank"] = "host"
    """Memory that holds the prefix caches: the host's, the device's, or the memory of each rank's device."""
    processor_suffix: str | None = None
    """Regular expression of the suffixes that mean the processor; None if the family has accelerators only. It
    determines the default number of branches: 1 on the processor, 4 on an accelerator."""
    all_cores_suffix: str | None = None
    """Regular expression of the suffixes of devices that use every core of the processor; None if there are none."""
    is_nvidia_gpu: bool = False
    """True if each device is one NVIDIA GPU, as Ray and Triton count them."""
    needs_engine: bool = False
    """True if devices run engines that are compiled from a bundle beforehand."""
    canvases: bool = False
    """True if devices compute contract 2, for models with canvases."""
    spans_processes: bool = False
    """True if a device is all ranks of a job of several processes."""
    timed: Sequence[str] = ()
    """Devices that `doctor BUNDLE` times if they are available."""
    ability: Ability
    """Libraries that the family needs, and how to install them."""

    @property
    def label(self) -> str:
        """Name for all devices of the family: "cpu", "cuda:N"."""
        return f"{self.name}:N" if self.has_numbers else self.name

    @property
    def has_numbers(self) -> bool:
        """True if the family's names contain the number of a device, 0 if it is left out."""
        return self.suffix.startswith(_NUMBER)


@dataclass(frozen=True)
class DeviceName:
    """A parsed device name."""

    family: DeviceFamily
    rest: str
    """Part after the first colon, empty without one. It begins with the number if the family has numbers."""

    def __str__(self) -> str:
        return f"{self.family.name}:{self.rest}" if self.rest else self.family.name

    @property
    def number(self) -> int:
        """Number of the device. Raises ValueError if the family's names contain no number."""
        return int(self.rest.partition(":")[0])

    @property
    def uses_tf32(self) -> bool:
        """True if float32 products may be computed in TF32."""
        return self.rest.endswith(":tf32")

    @property
    def is_processor(self) -> bool:
        """True if the device computes on the processor, on any of its cores."""
        return self._has_suffix(self.family.processor_suffix)

    @property
    def uses_all_cores(self) -> bool:
        """True if the device computes on every core of the processor."""
        return self._has_suffix(self.family.all_cores_suffix)

    def _has_suffix(self, pattern: str | None) -> bool:
        suffix = f":{self.rest}" if self.rest else ""
        return pattern is not None and re.fullmatch(pattern, suffix, re.ASCII) is not None


@dataclass(frozen=True)
class DeviceStatus:
    """A device of this machine and its state, without opening a bundle."""

    name: str
    state: str
    """Phrase for users. It says that the device is ready, or names the missing part and its installation."""
    is_here: bool = True
    """False if its library is not installed; only `doctor --all` lists it then."""


_RUNTIME = Ability(
    "runtime", "decode (runtime)", ("numpy", "onnxruntime or onnxruntime-gpu", "tokenizers"), pip_install
)
_with_tensorrt = partial(
    DeviceFamily,
    suffix=_NUMBER,
    session_module="lopa.runtime.tensorrt.tensorrt_session",
    status_module="lopa.runtime.tensorrt.tensorrt_library",
    caches="device",
    is_nvidia_gpu=True,
    needs_engine=True,
)
_TABLE = (
    DeviceFamily(
        name="cpu",
        description="ONNX Runtime on the processor",
        syntax="cpu, cpu:N or cpu:N-M (cores N to M)",
        suffix=r"(:\d{1,5}(-\d{1,5})?)?",
        examples=("cpu",),
        session_module="lopa.runtime.sessions.onnxruntime_session",
        stage_module="lopa.runtime.sessions.onnxruntime_session",
        processor_suffix=".*",
        all_cores_suffix="",
        canvases=True,
        timed=("cpu",),
        ability=_RUNTIME,
    ),
    DeviceFamily(
        name="openvino",
        description="OpenVINO's device of that name",
        syntax="openvino:NAME (CPU, GPU, GPU.N or NPU; append :bf16 or :int8 for reduced precision)",
        suffix=r":(CPU|GPU(\.\d{1,3})?|NPU(\.\d{1,3})?)(:(bf16|int8))?",
        examples=("openvino:CPU", "openvino:CPU:bf16", "openvino:CPU:int8"),
        canvases=True,
        session_module="lopa.runtime.openvino.openvino_session",
        stage_module="lopa.runtime.openvino.openvino_session",
        status_module="lopa.runtime.openvino.openvino_library",
        processor_suffix=":CPU.*",
        all_cores_suffix=":CPU.*",
        timed=("openvino:CPU", "openvino:CPU:bf16", "openvino:CPU:int8", "openvino:GPU"),
        ability=Ability(
            "openvino",
            "decode with OpenVINO (docs/how-to/devices.md)",
            ("openvino",),
            partial(pip_install, "openvino"),
            min_version=(2026, 4),  # oldest tested version; older ones lack operators of opset 23
        ),
    ),
    DeviceFamily(
        name="cuda",
        description="ONNX Runtime's CUDA provider on GPU N",
        syntax="cuda:N (append :tf32 for products in TF32)",
        suffix=rf"{_NUMBER}(:tf32)?",
        examples=("cuda:0", "cuda:0:tf32"),
        session_module="lopa.runtime.cuda.cuda_session",
        stage_module="lopa.runtime.cuda.cuda_session",
        status_module="lopa.runtime.cuda.gpu_status",
        caches="device",
        canvases=True,
        is_nvidia_gpu=True,
        timed=("cuda:0",),
        ability=Ability(
            "cuda",
            "decode on an NVIDIA GPU (docs/how-to/devices.md)",
            ("onnxruntime-gpu", "cuda-bindings"),
            lambda: f"{pip_command()} uninstall onnxruntime, then {pip_install('gpu')}",
        ),
    ),
    _with_tensorrt(
        name="tensorrt",
        description="an engine by TensorRT on GPU N",
        syntax="tensorrt:N",
        examples=("tensorrt:0",),
        ability=Ability(
            "tensorrt",
            "build and run engines with TensorRT",
            ("tensorrt", "cuda-bindings"),
            lambda: f"{pip_install('tensorrt')} on a machine with an NVIDIA GPU (docs/how-to/engines.md)",
        ),
    ),
    _with_tensorrt(
        name="tensorrt-rtx",
        description="an engine by TensorRT for RTX on GPU N",
        syntax="tensorrt-rtx:N",
        examples=("tensorrt-rtx:0",),
        ability=Ability(
            "tensorrt-rtx",
            "build engines with TensorRT for RTX (also without a GPU)",
            (
                "tensorrt-rtx-cu13-bindings or tensorrt-rtx-cu12-bindings or tensorrt-rtx",
                "tensorrt-rtx-cu13-libs or tensorrt-rtx-cu12-libs or tensorrt-rtx",
            ),
            lambda: f"{pip_install('tensorrt-rtx')} (docs/how-to/engines.md)",
        ),
    ),
    DeviceFamily(
        name="ascend",
        description="an engine for Ascend on NPU N",
        syntax="ascend:N",
        suffix=_NUMBER,
        examples=("ascend:0",),
        session_module="lopa.runtime.ascend.ascend_session",
        status_module="lopa.runtime.ascend.acl_calls",
        caches="device",
        needs_engine=True,
        ability=Ability(
            "ascend",
            "build engines for Ascend",
            (),
            lambda: "CANN's toolkit and its set_env.sh, or another machine (docs/how-to/engines.md, --dry-run)",
            programs=("atc",),
        ),
    ),
    DeviceFamily(
        name="qnn",
        description="an engine for a Qualcomm NPU",
        syntax="qnn or qnn:SOC (with several engines)",
        suffix=r"(:[\w-]{1,64})?",
        examples=("qnn", "qnn:SM8650"),
        session_module="lopa.runtime.qnn.qnn_session",
        status_module="lopa.runtime.qnn.qnn_library",
        needs_engine=True,
        ability=Ability(
            "qnn",
            "build and run engines for Qualcomm NPUs",
            ("onnxruntime-qnn",),
            lambda: f"{pip_install('qnn')} (docs/how-to/engines.md)",
        ),
    ),
    DeviceFamily(
        name="webgpu",
        description="ONNX Runtime's WebGPU plug-in on GPU N of any vendor",
        syntax="webgpu:N",
        suffix=_NUMBER,
        examples=("webgpu:0",),
        session_module="lopa.runtime.webgpu.webgpu_session",
        status_module="lopa.runtime.webgpu.webgpu_library",
        caches="device",
        canvases=True,
        timed=("webgpu:0",),
        ability=Ability(
            "webgpu",
            "decode on any GPU with WebGPU (docs/how-to/devices.md)",
            ("onnxruntime-ep-webgpu",),
            partial(pip_install, "webgpu"),
        ),
    ),
    DeviceFamily(
        name="numpy",
        description="the readable reference, slow",
        syntax="numpy",
        examples=("numpy",),
        session_module="lopa.runtime.sessions.numpy_session",
        canvases=True,
        processor_suffix="",
        ability=_RUNTIME,
    ),
    DeviceFamily(
        name="mpi",
        description="a device of each process that mpirun starts",
        syntax="mpi or mpi:cuda (under mpirun)",
        suffix="(:cuda)?",
        examples=("mpi", "mpi:cuda"),
        session_module="lopa.runtime.mpi.mpi_session",
        caches="rank",
        spans_processes=True,
        ability=Ability(
            "mpi",
            "decode with several processes (MPI)",
            ("mpi4py",),
            lambda: f"{pip_install('mpi', also=('mpich',))} (or add the machine's own MPI to the library path)",
            programs=("mpirun",),
        ),
    ),
)
FAMILIES = {family.name: family for family in _TABLE}
"""Every family by name, in the order of help and of doctor."""
_OTHER_NAMES = {"gpu": ("cuda", "webgpu"), "npu": ("ascend", "qnn", "openvino"), "trt": ("tensorrt",)}
"""Families by the names that other programs have for them."""


def find_device(device: str) -> DeviceName | None:
    """Return the parsed device name, or None if it belongs to no family. Custom sessions may have such names."""
    name, _, rest = device.partition(":")
    family = FAMILIES.get(name)
    if family is None or re.fullmatch(family.suffix, device.removeprefix(name), re.ASCII) is None:
        return None
    if family.has_numbers and not rest[:1].isdigit():
        rest = f"0:{rest}" if rest else "0"
    return DeviceName(family, rest)


def parse_device(device: str, *families: str) -> DeviceName:
    """Return the parsed device name of one of `families`, or of any family if none are given.

    Raises BadInputError for other names.
    """
    found = find_device(device)
    if found is None or (families and found.family.name not in families):
        raise unknown_device(device, *families)
    return found


def unknown_device(device: str, *families: str) -> BadInputError:
    """Return the error for a device name that belongs to none of `families`.

    Without `families`, the error names the family that the name begins with, or those that other programs call so.
    """
    name = device.partition(":")[0].lower()
    meant = [FAMILIES[each] for each in families or _OTHER_NAMES.get(name, (name,)) if each in FAMILIES]
    expected = " or ".join(family.syntax for family in meant) or "one of " + ", ".join(FAMILIES)
    if meant and all(family.has_numbers for family in meant):
        expected += " with N the number of the device"
    example = f"use a name such as {meant[0].examples[0] if meant else 'cpu'}"
    remedy = "repeat --device for several devices" if "," in device else example
    return BadInputError(f"unknown device {device!r}", expected=expected, remedy=remedy)


def full_device_name(device: str) -> str:
    """Return `device` with number 0 in each stage that leaves out the number: "cuda" becomes "cuda:0"."""
    return STAGE_SEPARATOR.join(str(find_device(stage) or stage) for stage in stages_of_device(device))


def stages_of_device(device: str) -> list[str]:
    """Return the devices of a pipeline's stages, or `device` alone if it is no pipeline."""
    return device.split(STAGE_SEPARATOR)


def families_of_devices(devices: Sequence[str]) -> list[str]:
    """Return the family names of all devices, stage by stage. The name of an unknown device stands for itself."""
    stages = [stage for device in devices for stage in stages_of_device(device)]
    return [stage if (found := find_device(stage)) is None else found.family.name for stage in stages]


def is_on_processor(device: str) -> bool:
    """Return True if `device`, with all of its stages, computes on the processor."""
    stages = map(find_device, stages_of_device(device))
    return all(stage is not None and stage.is_processor for stage in stages)


def uses_all_cores(device: str) -> bool:
    """Return True if `device` computes on every core of the processor."""
    found = find_device(device)
    return found is not None and found.uses_all_cores


def spans_processes(device: str) -> bool:
    """Return True if `device` is all ranks of a job of several processes."""
    found = find_device(device)
    return found is not None and found.family.spans_processes


def on_mpi(devices: Sequence[str]) -> bool:
    """Return True if these devices, as written by the user, are the ranks of an MPI job."""
    return len(devices) == 1 and spans_processes(devices[0])
