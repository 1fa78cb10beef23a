"""Open ONNX graphs on a WebGPU device with ONNX Runtime."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from lopa.runtime.graph_encoding import encoded_model, encoded_node, encoded_value
from lopa.runtime.sessions.ort_log import ERRORS_ONLY

Array = npt.NDArray[Any]

DEVICE = "webgpu"
"""ONNX Runtime's name of memory without a vendor, such as the plug-in's. "gpu" means NVIDIA's in builds for CUDA."""


def session_from_graph(
    graph: Path | bytes, device: Any, matrices: Mapping[str, Array] | None = None
) -> "ort.InferenceSession":  # quoted: doctor imports this file with any ONNX Runtime
    """Open a graph on `device`, an OrtEpDevice of the WebGPU plug-in. `matrices` are initializers without values.

    Integers of 64 bits stay on the device, so that no node of a portable graph runs on the processor. Raises ONNX
    Runtime's exceptions, also if the provider does not start.
    """
    options = ort.SessionOptions()
    options.log_severity_level = ERRORS_ONLY
    options.add_session_config_entry("ep.webgpuexecutionprovider.enableInt64", "1")
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in (matrices or {}).items()}
    if values:
        options.add_external_initializers(list(values), list(values.values()))
    options.add_provider_for_devices([device], {})
    # ONNX Runtime would open the graph on the processor if the provider does not start.
    return ort.InferenceSession(graph if isinstance(graph, bytes) else str(graph), options, enable_fallback=0)


def can_run(device: Any) -> bool:
    """Return True if a graph opens on `device`. A software adapter is also offered where no Vulkan driver is."""
    x, y = (encoded_value(name, np.float32, (1,)) for name in "xy")
    graph = encoded_model([encoded_node("Neg", ["x"], "y")], [x], [y])
    try:
        session_from_graph(graph, device)
    except Exception:  # ONNX Runtime's exceptions have no common base class
        return False
    return True
