"""Our standard graph on OpenVINO's processor plugin, read as it is: one forward of the contract. Knows no request."""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from lopa.runtime import contract
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import Rows, Statistics, WindowBatch
from lopa.runtime.errors import MissingBackendError
from lopa.runtime.sessions.host_session import HostSession
from lopa.runtime.sessions.prefix_cache import Prefix, cache_shape_from_manifest

_CAPABILITY = {"f32": "FP32", "bf16": "BF16"}
"""What the plugin calls the types in which it may compute."""


def open_openvino(bundle: Bundle, precision: str, threads: int, library: Path) -> HostSession:
    """A session that computes floats in `precision` ("f32", "bf16"), integers as the graph says.

    OpenVINO is the installed one, else that in the folder `library`.

    Raises MissingBackendError when there is none, or when it does not list the precision for this processor.
    """
    sys.path.append(str(library))
    try:
        import openvino
    except ImportError as error:
        raise MissingBackendError(
            f"OpenVINO cannot be imported: {error}",
            expected=f"the package openvino, installed or in {library}",
            remedy="python -m tools.peers prepare fetches it",
        ) from error
    core = openvino.Core()
    listed = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if _CAPABILITY[precision] not in listed:
        raise MissingBackendError(
            f"OpenVINO lists {', '.join(listed)} for this processor",
            expected=_CAPABILITY[precision],
            remedy="measure this side on another processor",
        )
    settings = {
        "INFERENCE_PRECISION_HINT": precision,
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": str(threads),
    }
    model = core.compile_model(core.read_model(bundle.graph), "CPU", settings)
    forward = OpenVinoForward(openvino, model, bundle.manifest.dimensions.layers)
    return HostSession(forward, f"openvino {precision}", cache_shape_from_manifest(bundle.manifest))


class OpenVinoForward:
    """lopa.runtime.sessions.host_session.Forward; inputs are handed over where they lie."""

    def __init__(self, openvino: Any, model: Any, layers: int) -> None:
        self._openvino = openvino
        self._request = model.create_infer_request()
        self._layers = layers

    def run(self, batch: WindowBatch, prefix: Prefix) -> tuple[Statistics, tuple[Rows, ...]]:
        """Forward.run"""
        inputs = {
            contract.INPUT_IDS: batch.input_ids,
            contract.POSITION_IDS: batch.position_ids,
            contract.WINDOW_MASK: batch.window_mask,
            contract.LOGITS_INDEX: batch.logits_index,
            contract.TEMPERATURE: batch.temperature,
            contract.PREFIX_MASK: prefix.mask,
            **dict(zip(contract.forward.past_names(self._layers), prefix.arrays, strict=True)),
        }
        for name, array in inputs.items():
            tensor = self._openvino.Tensor(np.ascontiguousarray(array), shared_memory=True)
            self._request.set_tensor(name, tensor)
        self._request.infer()
        statistics = Statistics(
            topk_ids=self._output(contract.TOPK_IDS).copy(),
            topk_logprobs=self._output(contract.TOPK_LOGPROBS).copy(),
            entropy=self._output(contract.ENTROPY).copy(),
        )
        return statistics, tuple(self._output(name) for name in contract.forward.window_names(self._layers))

    def forget_prefix(self) -> None:
        """Forward.forget_prefix: the next run sets all inputs."""

    def close(self) -> None:
        """Free the model."""
        del self._request

    def _output(self, name: str) -> Any:
        return self._request.get_tensor(name).data
