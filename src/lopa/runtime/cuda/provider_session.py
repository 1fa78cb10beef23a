"""A graph opened by ONNX Runtime's CUDA provider, over arrays in device memory.

ONNX Runtime keeps CUDA graphs per thread, so one thread must create, use and close a session.
"""

import logging
from collections.abc import Mapping
from typing import Any

import onnxruntime as ort

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.graph_signature import ArrayForm
from lopa.runtime.contract import stored_dtype
from lopa.runtime.cuda.cuda_calls import CAPTURE_LOCK
from lopa.runtime.cuda.cuda_memory import CudaMemory
from lopa.runtime.cuda.cuda_operators import VARIABLE, CudaOperators
from lopa.runtime.errors import BadInputError, EngineFailedError, MissingBackendError, raise_if_from_handler
from lopa.runtime.sessions.cuda_libraries import cuda_remedy
from lopa.runtime.sessions.onnxruntime_graph import check_contract, quiet_run
from lopa.runtime.sessions.providers import (
    ERRORS_ONLY,
    PROVIDER,
    cuda_providers,
    keep_fp8_products,
    session_on_providers,
)

_log = logging.getLogger(__name__)
_BFLOAT16_IN_ONNX = 16
"""Value of TensorProto.BFLOAT16."""
_NO_GRAPH = -1
"""Value of ONNX Runtime's gpu_graph_id for a run without a graph. 0 is reserved."""
DeviceArrays = Mapping[str, tuple[ArrayForm, int]]
"""Arrays by name, each with its address in device memory."""


class ProviderSession:
    """A bundle's graph, or its twin for CUDA, in a session of ONNX Runtime."""

    def __init__(
        self, bundle: Bundle, device: str, memory: CudaMemory, operators: CudaOperators | None, *, with_graphs: bool
    ) -> None:
        """Open the graph on "cuda:N" or "cuda:N:tf32", whose memory and stream `memory` has.

        Raises MissingBackendError if the provider does not start, and BadInputError if the graph cannot be opened. A
        graph with operators that run on the CPU cannot be opened `with_graphs`.
        """
        graph = bundle.graph if operators is None else operators.graph
        self._device, self._with_graphs, self._captures = memory.device, with_graphs, 0
        self._has_operators = operators is not None
        providers = cuda_providers(
            device,
            user_compute_stream=str(memory.stream),
            do_copy_in_default_stream="1",
            enable_cuda_graph="1" if with_graphs else "0",
        )
        options = ort.SessionOptions()
        options.log_severity_level = ERRORS_ONLY
        keep_fp8_products(options, bundle)
        if operators is not None:
            operators.library.add_operators(options)
        try:
            with CAPTURE_LOCK.shared():
                self._session: Any = session_on_providers(graph, options, providers)
        except Exception as error:
            raise_if_from_handler(error)
            raise BadInputError(
                f"ONNX Runtime {ort.__version__} cannot open {graph} on cuda:{memory.device}: {error}",
                expected="a graph made by this version of lopa-export that runs on the CUDA provider",
                remedy="check the bundle with lopa-export verify, export the checkpoint again",
            ) from error
        if self._session.get_providers()[0] != PROVIDER:
            raise MissingBackendError(
                f"cuda:{memory.device}: the CUDA provider did not start; ONNX Runtime fell back to "
                f"{self._session.get_providers()}",
                expected="the CUDA 13 and cuDNN 9 libraries on the loader path",
                remedy=cuda_remedy(),
            )
        twin = None if operators is None else operators.twin
        check_contract(bundle, graph, self._session, bundle.manifest.dimensions.whole_model, twin)

    def bound(self, inputs: DeviceArrays, outputs: DeviceArrays, *, captures: bool = False) -> Any:
        """Return what `run` takes for these arrays. With `captures`, its first run is captured as a CUDA graph, which
        later ones replay."""
        binding, device = self._session.io_binding(), self._device
        for name, (form, address) in inputs.items():
            binding.bind_input(name, "cuda", device, _type_in_binding(form), form.shape, address)
        for name, (form, address) in outputs.items():
            binding.bind_output(name, "cuda", device, _type_in_binding(form), form.shape, address)
        options = quiet_run()
        # Downloads of the statistics wait on the same stream.
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        self._captures += captures
        if self._with_graphs:
            options.add_run_config_entry("gpu_graph_id", str(self._captures if captures else _NO_GRAPH))
        return binding, options

    def run(self, bound: Any, *, captures: bool = False) -> None:
        """Enqueue a forward. Raises EngineFailedError if ONNX Runtime cannot run it."""
        try:
            # ONNX Runtime runs a graph twice, then captures and replays it, all within the first call.
            with CAPTURE_LOCK.exclusive() if captures else CAPTURE_LOCK.shared():
                self._session.run_with_iobinding(*bound)
        except Exception as error:  # ONNX Runtime's exceptions have no common base class
            raise_if_from_handler(error)
            raise EngineFailedError(
                f"ONNX Runtime on cuda:{self._device}: {error}",
                expected="a successful forward",
                remedy="check nvidia-smi; if memory is full, decode fewer requests at once",
                operator=f"{VARIABLE}=off in the environment runs the plain graph" if self._has_operators else "",
            ) from error

    def close(self) -> None:
        """Free the session."""
        self._session = None


def opened_for_graphs(
    bundle: Bundle, device: str, memory: CudaMemory, operators: CudaOperators
) -> tuple[ProviderSession, bool]:
    """Open the twin for CUDA graphs, or without them if one of its nodes runs on the CPU. Return which, too."""
    try:
        return ProviderSession(bundle, device, memory, operators, with_graphs=True), True
    except BadInputError as error:
        opened = ProviderSession(bundle, device, memory, operators, with_graphs=False)
        _log.info("cuda:%d runs %s without CUDA graphs: %s", memory.device, operators.graph.name, error.received)
        return opened, False


def _type_in_binding(form: ArrayForm) -> Any:
    """Return the element type as IOBinding takes it: a numpy type, or an ONNX type number."""
    return _BFLOAT16_IN_ONNX if form.dtype == stored_dtype("bfloat16") else form.dtype.type
