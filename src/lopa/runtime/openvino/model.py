"""A bundle's graph compiled by OpenVINO: the checks before and after, and one compiled model for all who ask for it.

Does not know what goes in and out of a forward.
"""

import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.graph_signature import check_signature
from lopa.runtime.contract.model_part import ModelPart
from lopa.runtime.errors import BadInputError, MissingBackendError
from lopa.runtime.files.untrusted_input import said_by
from lopa.runtime.openvino.device import OpenVinoDevice, device_from_name
from lopa.runtime.openvino.library import openvino_module

_BLOCK = 32
"""Numbers of a row that are rounded to 8 bits together: a block of an int4 matrix (lopa.export.weights)."""
_TYPES = {"i64": "int64", "f32": "float", "f16": "float16", "bf16": "bfloat16", "boolean": "bool"}
"""OpenVINO's names of types -> ONNX's."""
_open_models: weakref.WeakValueDictionary["_ModelKey", "CompiledModel"] = weakref.WeakValueDictionary()
"""Models in use; each is freed with its last session."""
_opening = threading.Lock()


@dataclass(frozen=True, eq=False)
class CompiledModel:
    """A compiled graph; requests of several sessions may run on it, one at a time."""

    compiled: Any
    """openvino.CompiledModel"""
    openvino: Any
    """The package."""


def model_of_part(bundle: Bundle, part: ModelPart, device: str, threads: int | None) -> CompiledModel:
    """The standard graph of `bundle`, that of `part`, compiled for "openvino:NAME" and checked.

    `threads` None leaves their number to OpenVINO; they are of its processor device only. Raises BadInputError for
    another device, and for a graph that is portable, has functions or cannot be used; MissingBackendError when OpenVINO
    is absent or too old, when it has no such device, or when that has no bfloat16 and it is asked for.
    """
    asked = device_from_name(device)
    if bundle.manifest.plugins:
        raise BadInputError(
            f"device {device!r} for {bundle.path}, a graph with the functions {', '.join(bundle.manifest.plugins)}",
            expected="a graph of standard operators: OpenVINO reads no functions of the domain lopa",
            remedy="export the checkpoint without --plugins, or use --device cpu",
        )
    if asked.rounding == "auto":
        raise BadInputError(
            f"device {device!r} for layers {part.first + 1} to {part.end} of {bundle.path}",
            expected="a stage of a pipeline that says how it rounds: only whole models are timed",
            remedy=f"use openvino:{asked.name} there, or openvino:{asked.name}:bf16",
        )
    if asked.rounding == "int8" and not _has_rows_to_round(bundle, asked.name):
        matrices = "floats" if (kind := bundle.manifest.quantization) is None else kind.kind
        raise BadInputError(
            f"device {device!r} for {bundle.path}, whose matrices are {matrices}",
            expected="openvino:CPU:int8 with a bundle of 4-bit matrices: others have no products that it changes",
            remedy=f"use --device openvino:{asked.name}, or export the checkpoint with --quantize int4",
        )
    if bundle.manifest.dialect != "standard":
        raise BadInputError(
            f"device {device!r} for {bundle.path}, a graph in the {bundle.manifest.dialect} dialect",
            expected="a graph in the standard dialect",
            remedy="export the checkpoint with --dialect both, or use --device cpu",
        )
    openvino = openvino_module(device)
    with _opening:
        states = [path.stat() for path in (bundle.graph, bundle.weights)]
        files = tuple((state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns) for state in states)
        key = _ModelKey(files, asked, threads)
        model = _open_models.get(key)
        if model is None:
            model = _open_models[key] = CompiledModel(_compiled(openvino, bundle, part, device, threads), openvino)
    _check_contract(bundle, part, model.compiled)
    return model


@dataclass(frozen=True)
class _ModelKey:
    """What makes two compiled models the same. The files' identity tells a bundle from another put in its place."""

    files: tuple[tuple[int, ...], ...]
    """Device, inode, size and time of change of the graph and of the weights."""
    device: OpenVinoDevice
    threads: int | None


def _compiled(openvino: Any, bundle: Bundle, part: ModelPart, device: str, threads: int | None) -> Any:
    asked = device_from_name(device)
    core = openvino.Core()
    check_listed(core, device)
    try:
        model = core.read_model(os.fspath(bundle.graph))
        _check_contract(bundle, part, model)
        return core.compile_model(model, asked.name, settings(asked, threads))
    except RuntimeError as error:  # what OpenVINO raises for everything
        raise BadInputError(
            f"OpenVINO {openvino.__version__} cannot compile {bundle.graph} for {asked.name}: {said_by(error)}",
            expected="a device that compiles the operators and the dynamic shapes of a standard graph",
            remedy="use --device cpu; if OpenVINO is older than the one in constraints.txt, install that",
        ) from error


def check_listed(core: Any, device: str) -> None:
    """Raise MissingBackendError unless OpenVINO lists the device, and it has bfloat16 where that is asked for."""
    asked = device_from_name(device)
    listed = list(core.available_devices)
    if asked.name not in listed and f"{asked.name}.0" not in listed:
        raise MissingBackendError(
            f"device {device!r}, but OpenVINO lists {', '.join(listed) or 'no device'} here",
            expected="a device that OpenVINO lists",
            remedy="install the device's driver, or use one that is listed, e.g. --device openvino:CPU",
        )
    capabilities = _capabilities(core, asked.name)
    if asked.rounding == "bf16" and "BF16" not in capabilities:
        raise MissingBackendError(
            f"device {device!r}, but {core.get_property(asked.name, 'FULL_DEVICE_NAME')} has only "
            f"{', '.join(capabilities)}",
            expected="a device with BF16 among its capabilities: a processor with AVX512-BF16 or AMX",
            remedy=f"use --device openvino:{asked.name}, which computes in float32",
        )


def devices_to_choose_from(bundle: Bundle, device: str) -> tuple[str, ...]:
    """What "openvino:NAME:auto" may become for `bundle` on this machine: the device in float32, then its roundings.

    Raises MissingBackendError when OpenVINO is absent or too old, or when it has no such device.
    """
    core, name = openvino_module(device).Core(), device_from_name(device).name
    check_listed(core, device)
    plain = f"openvino:{name}"
    rounded = [f"{plain}:bf16"] if "BF16" in _capabilities(core, name) else []
    return (plain, *rounded, *([f"{plain}:int8"] if _has_rows_to_round(bundle, name) else []))


def _capabilities(core: Any, name: str) -> list[str]:
    return [str(each) for each in core.get_property(name, "OPTIMIZATION_CAPABILITIES")]


def _has_rows_to_round(bundle: Bundle, name: str) -> bool:
    """Whether the device `name` has products with 4-bit weights in `bundle` whose rows it can round to 8 bits."""
    quantization = bundle.manifest.quantization
    return name == "CPU" and quantization is not None and quantization.kind == "int4"


def settings(asked: OpenVinoDevice, threads: int | None) -> dict[str, Any]:
    """What a model is compiled with; everything that changes numbers is said, nothing left to OpenVINO's defaults.

    Those would take bfloat16 wherever the processor has it, round rows to 8 bits in products with integer weights, and
    keep threads on cores that another session may use.
    """
    common = {
        "INFERENCE_PRECISION_HINT": "bf16" if asked.rounding == "bf16" else "f32",
        "PERFORMANCE_HINT": "LATENCY",
    }
    if asked.name != "CPU":
        return common
    return common | {
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": 0 if threads is None else threads,  # 0: its own choice
        "ENABLE_CPU_PINNING": False,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": _BLOCK if asked.rounding == "int8" else 0,
    }


@dataclass(frozen=True)
class _Value:
    """graph_signature.GraphValue of one of OpenVINO's inputs or outputs."""

    name: str
    type: str
    shape: Sequence[int | None]


def _check_contract(bundle: Bundle, part: ModelPart, model: Any) -> None:
    """As check_signature, of what OpenVINO has read or compiled."""
    inputs, outputs = ([_value(each) for each in values] for values in (model.inputs, model.outputs))
    check_signature(bundle.graph, bundle.manifest, part, inputs, outputs)


def _value(port: Any) -> _Value:
    kind = port.element_type.get_type_name()
    shape = [axis.get_length() if axis.is_static else None for axis in port.partial_shape]
    return _Value(port.any_name, f"tensor({_TYPES.get(kind, kind)})", shape)
