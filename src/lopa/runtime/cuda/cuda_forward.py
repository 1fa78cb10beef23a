"""One forward of the plain graph by ONNX Runtime's CUDA provider, for any shape (DeviceForward protocol)."""

from collections.abc import Mapping

from lopa.runtime.accelerator.device_forward import AnyShapes
from lopa.runtime.accelerator.device_memory import Buffer
from lopa.runtime.accelerator.graph_form import ContractForm, GraphForm, PortableForm
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import ShapeBucket
from lopa.runtime.bundle.graph_signature import ArrayForm
from lopa.runtime.cuda.cuda_memory import CudaMemory
from lopa.runtime.cuda.provider_session import ProviderSession

_WINDOW_STEP = 4
"""Granularity of window lengths that ONNX Runtime's fused masked attention supports. Prefixes are multiples of 64."""


class CudaForward(AnyShapes):
    """Forward on ONNX Runtime's CUDA provider."""

    def __init__(self, bundle: Bundle, device: str, memory: CudaMemory) -> None:
        """Open the bundle's graph. Raises like ProviderSession."""
        super().__init__(bundle.manifest, [], _WINDOW_STEP)
        self.memory = memory
        form = PortableForm if bundle.manifest.dialect == "portable" else ContractForm
        self.form: GraphForm = form(bundle.manifest.rotary)
        self._session = ProviderSession(bundle, device, memory, None, with_graphs=False)
        self._bound: object = None
        self._bound_key: object = None
        """Shape and addresses of `_bound`."""

    def enqueue(self, bucket: ShapeBucket, buffers: Mapping[str, Buffer]) -> None:
        """Enqueue a forward. Raises EngineFailedError if ONNX Runtime cannot run it."""
        key = (bucket, tuple(buffer.address for buffer in buffers.values()))
        if key != self._bound_key:

            def placed(forms: Mapping[str, ArrayForm]) -> dict[str, tuple[ArrayForm, int]]:
                return {name: (form, buffers[name].address) for name, form in forms.items()}

            self._bound_key = None
            self._bound = self._session.bound(placed(self.arrays.inputs(bucket)), placed(self.arrays.outputs(bucket)))
            self._bound_key = key
        self._session.run(self._bound)

    def close(self) -> None:
        """Free the session."""
        self._bound = None
        self._session.close()
