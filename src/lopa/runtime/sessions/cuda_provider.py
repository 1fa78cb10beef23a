"""Options of ONNX Runtime's CUDA provider, which no other module makes, and sessions on it or on the CPU provider.

docs/how-to/devices.md lists the provider's defaults that change results.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import onnxruntime as ort

from lopa.runtime.bundle import Bundle
from lopa.runtime.device_families import parse_device
from lopa.runtime.errors import BadInputError, is_from_signal_handler
from lopa.runtime.sessions.ort_log import errors_only

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


def session_on_providers(graph: Path, options: ort.SessionOptions, providers: Providers) -> Any:
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
