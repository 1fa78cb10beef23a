"""Open ONNX graphs on a WebGPU device with ONNX Runtime."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnxruntime as ort

from lopa.runtime.webgpu.webgpu_library import PROVIDER

Array = npt.NDArray[Any]

DEVICE = "gpu"
"""ONNX Runtime's name of a plug-in's device memory."""
_ERRORS_ONLY = 3


def session_from_graph(
    graph: Path | bytes, device: Any, matrices: Mapping[str, Array] | None = None
) -> ort.InferenceSession:
    """Open a graph on `device`, an OrtEpDevice of the WebGPU plug-in. `matrices` are initializers without values.

    Integers of 64 bits stay on the device, so that no node of a portable graph runs on the processor. Raises ONNX
    Runtime's exceptions, and RuntimeError if the provider does not start.
    """
    options = ort.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    options.add_session_config_entry("ep.webgpuexecutionprovider.enableInt64", "1")
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in (matrices or {}).items()}
    if values:
        options.add_external_initializers(list(values), list(values.values()))
    options.add_provider_for_devices([device], {})
    session = ort.InferenceSession(graph if isinstance(graph, bytes) else str(graph), options)
    if session.get_providers()[0] != PROVIDER:  # ONNX Runtime opens the graph on the processor then
        raise RuntimeError(f"{PROVIDER} did not start; ONNX Runtime used {session.get_providers()}")
    return session
