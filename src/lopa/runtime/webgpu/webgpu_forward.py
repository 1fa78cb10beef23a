"""One forward by ONNX Runtime's WebGPU provider with the prefix and the new rows in device memory.

ONNX Runtime copies the small inputs and the statistics itself (HostBoundForward protocol).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort

from lopa.runtime.accelerator.device_forward import AnyShapes
from lopa.runtime.accelerator.device_memory import Array, Buffer
from lopa.runtime.accelerator.graph_form import ContractForm, GraphForm, PortableForm
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import ShapeBucket
from lopa.runtime.bundle.graph_signature import ArrayForm
from lopa.runtime.errors import BadInputError
from lopa.runtime.sessions.onnxruntime_graph import quiet_run
from lopa.runtime.webgpu.webgpu_library import softmax_is_right
from lopa.runtime.webgpu.webgpu_memory import WebGpuMemory

_WINDOW_STEP = 16
"""Granularity of window lengths. Every new shape costs the compilation of shaders."""


_SMALLEST_LIMIT = 1 << 27
"""Bytes that every WebGPU adapter binds as one buffer."""


class WebGpuForward(AnyShapes):
    """Forward of a graph, for shape buckets and any other shape."""

    def __init__(
        self,
        bundle: Bundle,
        session: ort.InferenceSession,
        memory: WebGpuMemory,
        buckets: Sequence[ShapeBucket],
        adapter: Any,
    ) -> None:
        """Create a forward over `session`, which has opened the graph of `bundle` on `adapter`."""
        super().__init__(bundle.manifest, buckets, _WINDOW_STEP)
        self.memory = memory
        form = PortableForm if bundle.manifest.dialect == "portable" else ContractForm
        self.form: GraphForm = form(bundle.manifest.rotary)
        self._session: ort.InferenceSession | None = session
        self._options = quiet_run()
        self._adapter, self._vocab_size, self._largest = adapter, bundle.manifest.dimensions.vocab_size, _SMALLEST_LIMIT

    def _check_logits(self, rows: int) -> None:
        """Raise BadInputError if the adapter does not compute logits of as many rows."""
        size = rows * self._vocab_size * np.dtype(np.float32).itemsize
        if size > self._largest:
            if not softmax_is_right(self._adapter, rows, self._vocab_size):
                raise BadInputError(
                    f"{rows} sampled positions of {self._vocab_size} tokens, {size / 2**20:.0f} MiB of logits",
                    expected="at most as much as the WebGPU adapter binds at once",
                    remedy="decode fewer requests or branches at once, or use another device",
                )
            self._largest = size

    def run(
        self,
        bucket: ShapeBucket,
        inputs: Mapping[str, Array],
        buffers: Mapping[str, Buffer],
        outputs: Mapping[str, Array],
    ) -> None:
        """Run a forward and fill the host arrays `outputs`. Raises ONNX Runtime's exceptions."""
        assert self._session is not None  # DeviceSession does not call `run` after close()
        self._check_logits(bucket.requests * bucket.branches * bucket.wanted)
        binding, transfers = self._session.io_binding(), self.memory.transfers
        for name, array in inputs.items():
            binding.bind_cpu_input(name, array)
            transfers.uploaded += array.nbytes
        for name, form in self.arrays.inputs(bucket).items():
            if name in buffers:
                binding.bind_input(name, *self._device_array(form, buffers[name]))
        output_forms = self.arrays.outputs(bucket)
        for name, form in output_forms.items():
            if name in buffers:
                binding.bind_output(name, *self._device_array(form, buffers[name]))
            else:
                binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(binding, self._options)
        for name, value in zip(output_forms, binding.get_outputs(), strict=True):
            if name in outputs:
                statistics: Array = value.numpy()
                outputs[name][...] = statistics.reshape(outputs[name].shape)
                transfers.downloaded += statistics.nbytes

    def _device_array(self, form: ArrayForm, buffer: Buffer) -> tuple[Any, ...]:
        """Return the arguments of IOBinding that describe an array at the start of a buffer."""
        return *self.memory.place, form.dtype.type, form.shape, self.memory.handle(buffer.address)

    def close(self) -> None:
        """Free the graph."""
        self._session = None
