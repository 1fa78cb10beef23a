"""Open ONNX graphs on a WebGPU device with ONNX Runtime."""

from pathlib import Path
from typing import Any

import onnxruntime as ort

DEVICE = "gpu"
"""ONNX Runtime's name of a plug-in's device memory."""
PROVIDER = "WebGpuExecutionProvider"
_ERRORS_ONLY = 3


def session_from_graph(graph: Path | bytes, device: Any) -> ort.InferenceSession:
    """Open a graph on `device`, an OrtEpDevice of the WebGPU plug-in.

    Integers of 64 bits stay on the device, so that no node of a portable graph runs on the processor. Raises ONNX
    Runtime's exceptions.
    """
    options = ort.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    options.add_session_config_entry("ep.webgpuexecutionprovider.enableInt64", "1")
    options.add_provider_for_devices([device], {})
    return ort.InferenceSession(graph if isinstance(graph, bytes) else str(graph), options)
