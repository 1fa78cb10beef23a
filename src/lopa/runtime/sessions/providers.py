"""Options of ONNX Runtime's sessions on its CPU and CUDA providers, and the opening of a graph on them.

docs/how-to/devices.md lists the CUDA provider's defaults that change results. No other module sets its options.

Types of ONNX Runtime are quoted, because doctor imports this file with any ONNX Runtime.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import onnxruntime as ort

from lopa.runtime.bundle import Bundle
from lopa.runtime.device_families import parse_device
from lopa.runtime.errors import BadInputError, is_from_signal_handler

ERRORS_ONLY = 3
"""Severity of a logger that prints errors and no warnings."""


@contextmanager
def errors_only() -> Iterator[None]:
    """Print the default logger's errors and no warnings during the block. ONNX Runtime cannot return the severity, so
    its default is restored.
    """
    ort.set_default_logger_severity(ERRORS_ONLY)
    try:
        yield
    finally:
        ort.set_default_logger_severity(2)  # warnings and errors


PROVIDER, CPU_PROVIDER = "CUDAExecutionProvider", "CPUExecutionProvider"
Providers = Sequence[tuple[str, Mapping[str, str]]]
_OVERRIDE = "NVIDIA_TF32_OVERRIDE"
"""Environment variable of NVIDIA's libraries. 0 forbids TF32, whatever a program sets."""


def cuda_providers(device: str, **options: str) -> Providers:
    """Return the execution providers for "cuda:N" or "cuda:N:tf32", with further `options` of the CUDA provider.

    ONNX Runtime would multiply float32 in TF32. Device 0 is its default and is not named, because ONNX Runtime 1.31
    warns that no plug-in has the device that is named.
    """
    name = parse_device(device, "cuda")
    named = {"device_id": str(name.number)} if name.number else {}
    return [(PROVIDER, {"use_tf32": str(int(name.uses_tf32))} | named | options), (CPU_PROVIDER, {})]


def check_tf32(bundle: Bundle, device: str) -> None:
    """Raise BadInputError if TF32 has no effect on `bundle` on "cuda:N:tf32", or if the environment contradicts
    `device`.
    """
    name, override = parse_device(device, "cuda"), os.environ.get(_OVERRIDE)
    if name.uses_tf32 and bundle.manifest.dtype != "float32":
        raise BadInputError(
            f"device {device!r} has no effect on {bundle.path}, a bundle in {bundle.manifest.dtype}",
            expected="a bundle in float32, because TF32 rounds the factors of float32 products",
            remedy=f"use --device cuda:{name.number}",
        )
    if override and bundle.manifest.dtype == "float32" and (override != "0") != name.uses_tf32:
        raise BadInputError(
            f"device {device!r} with {_OVERRIDE}={override} in the environment",
            expected=f"{_OVERRIDE} unset, or 0 without :tf32; NVIDIA's libraries follow it, whatever a program sets",
            remedy=f"unset {_OVERRIDE}, or use --device cuda:{name.number}{'' if name.uses_tf32 else ':tf32'}",
        )


def session_on_providers(graph: Path, options: "ort.SessionOptions", providers: Providers) -> Any:
    """Open a graph on the first of `providers` that starts, without the warning that a device has no plug-in.

    InferenceSession would do so too, but it prints, and hides exceptions of signal handlers.
    """
    try:
        with errors_only() if "device_id" in providers[0][1] else nullcontext():
            return ort.InferenceSession(str(graph), options, providers=providers, enable_fallback=0)
    except RuntimeError as error:
        if is_from_signal_handler(error) or len(providers) == 1:
            raise
        return session_on_providers(graph, options, providers[1:])


def keep_fp8_products(options: "ort.SessionOptions", bundle: Bundle) -> None:
    """Let sessions over a bundle in FP8 fuse no products. ONNX Runtime 1.31.1 would fuse them to an operator of
    integers, and then refuse its types.
    """
    if bundle.manifest.is_fp8:
        options.add_session_config_entry("session.disable_quant_qdq", "1")


_PRECISION = "session.x64quantprecision"
"""Option that makes ONNX Runtime multiply unsigned with unsigned bytes on these processors. By default it adds pairs of
products in 16 bits there, and sums beyond this range are cut off."""


def multiply_exactly(options: "ort.SessionOptions") -> None:
    """Let sessions with `options` compute exact products of 8-bit integers. Processors with VNNI always do.

    Graphs that only dequantize such matrices, as portable ones do, must not get this option. With it, ONNX Runtime
    1.31.1 gives such a matrix one zero point for all channels on these processors, and then refuses to run it.
    """
    options.add_session_config_entry(_PRECISION, "1")
