"""A bundle's graph, checked and compiled by OpenVINO. All sessions of a process share one compiled model."""

import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.graph_signature import check_signature
from lopa.runtime.contract.model_part import ModelPart
from lopa.runtime.errors import BadInputError, MissingBackendError, error_text, raise_if_from_handler
from lopa.runtime.openvino.openvino_library import OpenVinoDevice, device_from_name, openvino_core, openvino_module

_BLOCK = 32
"""Number of row elements that are rounded to 8 bits together: a block of an int4 matrix (lopa.export.weights)."""
_TYPES = {"i64": "int64", "f32": "float", "f16": "float16", "bf16": "bfloat16", "boolean": "bool"}
"""ONNX type names by OpenVINO's names."""
_open_models: weakref.WeakValueDictionary["_ModelKey", "CompiledModel"] = weakref.WeakValueDictionary()
"""Open models. Each is freed with its last session."""
_open_lock = threading.Lock()


@dataclass(frozen=True, eq=False)
class CompiledModel:
    """A compiled graph. Requests of several sessions may run on it, one at a time."""

    compiled: Any
    """The openvino.CompiledModel."""
    openvino: Any
    """The openvino package."""


def model_of_part(bundle: Bundle, part: ModelPart, device: str, threads: int | None) -> CompiledModel:
    """Return the checked standard graph of `part` in `bundle`, compiled for "openvino:NAME".

    With `threads` None, OpenVINO chooses. Threads apply to its CPU device only. Raises BadInputError for another
    device, and for a graph that is portable, has functions or is unusable. Raises MissingBackendError if OpenVINO is
    missing or too old, or if it lacks the device or the requested bfloat16.
    """
    requested = device_from_name(device)
    if bundle.manifest.plugins:
        raise BadInputError(
            f"device {device!r} cannot run {bundle.path} with the functions {', '.join(bundle.manifest.plugins)}",
            expected="a graph without functions of the domain lopa, which OpenVINO cannot read",
            remedy="export the checkpoint without --plugins, or use --device cpu",
        )
    if bundle.manifest.is_fp8:
        raise BadInputError(
            f"device {device!r} cannot run {bundle.path}, a bundle with FP8 matrices",
            expected="matrices in floating point, int8 or int4",
            remedy="export the checkpoint with --quantize int8 or int4",
        )
    if bundle.manifest.dimensions.canvas is not None and (requested.name != "CPU" or requested.rounding == "bf16"):
        raise BadInputError(
            f"device {device!r} for a bundle with canvases (contract version 2)",
            expected="openvino:CPU in float32, in whose exact sums tokens are drawn",
            remedy="use --device openvino:CPU",
        )
    quantization = bundle.manifest.quantization
    matrices = "floats" if quantization is None else quantization.kind
    if requested.rounding == "int8" and (requested.name != "CPU" or matrices != "int4"):
        raise BadInputError(
            f"device {device!r} has no effect on {bundle.path}, whose matrices are {matrices}",
            expected="openvino:CPU:int8 with a bundle of 4-bit matrices; it has no effect on others",
            remedy=f"use --device openvino:{requested.name}, or export the checkpoint with --quantize int4",
        )
    if bundle.manifest.dialect != "standard":
        raise BadInputError(
            f"device {device!r} cannot run {bundle.path}, a graph in the {bundle.manifest.dialect} dialect",
            expected="a graph in the standard dialect",
            remedy="export the checkpoint with --dialect both, or use --device cpu",
        )
    openvino = openvino_module(device)
    with _open_lock:
        states = [path.stat() for path in (bundle.graph, bundle.weights)]
        files = tuple((state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns) for state in states)
        key = _ModelKey(files, requested, threads)
        model = _open_models.get(key)
        if model is None:
            model = _open_models[key] = CompiledModel(_compile(openvino, bundle, part, device, threads), openvino)
    _check_contract(bundle, part, model.compiled)
    return model


@dataclass(frozen=True)
class _ModelKey:
    """Identity of a compiled model. File identity distinguishes a bundle from another one at the same path."""

    files: tuple[tuple[int, ...], ...]
    """Device, inode, size and modification time of graph and weights."""
    device: OpenVinoDevice
    threads: int | None


def _compile(openvino: Any, bundle: Bundle, part: ModelPart, device: str, threads: int | None) -> Any:
    requested = device_from_name(device)
    core = openvino_core(openvino)
    check_listed(core, device)
    try:
        model = core.read_model(os.fspath(bundle.graph))
        _check_contract(bundle, part, model)
        return core.compile_model(model, requested.name, settings(requested, threads))
    except RuntimeError as error:  # OpenVINO raises RuntimeError for every failure
        raise_if_from_handler(error)
        raise BadInputError(
            f"OpenVINO {openvino.__version__} cannot compile {bundle.graph} for {requested.name}: {error_text(error)}",
            expected="a device that supports the operators and dynamic shapes of a standard graph",
            remedy="use --device cpu, or install the OpenVINO version in constraints.txt if yours is older",
        ) from error


def check_listed(core: Any, device: str) -> None:
    """Raise MissingBackendError unless OpenVINO lists the device, with bfloat16 if requested."""
    requested = device_from_name(device)
    listed = list(core.available_devices)
    if requested.name not in listed and f"{requested.name}.0" not in listed:
        raise MissingBackendError(
            f"device {device!r}, but OpenVINO lists {', '.join(listed) or 'no device'} here",
            expected="a device that OpenVINO lists",
            remedy="install the device's driver, or use a listed device, e.g. --device openvino:CPU",
        )
    capabilities = [str(each) for each in core.get_property(requested.name, "OPTIMIZATION_CAPABILITIES")]
    if requested.rounding == "bf16" and "BF16" not in capabilities:
        raise MissingBackendError(
            f"device {device!r}, but {core.get_property(requested.name, 'FULL_DEVICE_NAME')} has only "
            f"{', '.join(capabilities)}",
            expected="a device with the capability BF16, i.e. a processor with AVX512-BF16 or AMX",
            remedy=f"use --device openvino:{requested.name}, which computes in float32",
        )


def settings(requested: OpenVinoDevice, threads: int | None) -> dict[str, Any]:
    """Return the compile settings. They set every property that affects results, instead of using OpenVINO's defaults.

    The defaults use bfloat16 if the processor supports it, and round rows to 8 bits in products with integer weights.
    They also pin threads to cores that another session may use.
    """
    common: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": "bf16" if requested.rounding == "bf16" else "f32",
        "PERFORMANCE_HINT": "LATENCY",
    }
    if requested.name.startswith("NPU"):
        return common
    common["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = _BLOCK if requested.rounding == "int8" else 0
    if requested.name != "CPU":
        return common
    return common | {
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": 0 if threads is None else threads,  # with 0, OpenVINO chooses
        "ENABLE_CPU_PINNING": False,
    }


@dataclass(frozen=True)
class _Value:
    """A graph_signature.GraphValue for an OpenVINO input or output."""

    name: str
    type: str
    shape: Sequence[int | None]


def _check_contract(bundle: Bundle, part: ModelPart, model: Any) -> None:
    """Check the signature of a model that OpenVINO has read or compiled."""
    inputs, outputs = ([_value(each) for each in values] for values in (model.inputs, model.outputs))
    check_signature(bundle.graph, bundle.manifest, part, inputs, outputs)


def _value(port: Any) -> _Value:
    kind = port.element_type.get_type_name()
    shape = [axis.get_length() if axis.is_static else None for axis in port.partial_shape]
    return _Value(port.any_name, f"tensor({_TYPES.get(kind, kind)})", shape)
