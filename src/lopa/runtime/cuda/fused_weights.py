"""Matrices of a CUDA graph in device memory, put together from tensors of the weights file or with their bytes.

They are inputs of the graph. Each is filled once, from the mapped file, when a session opens. Captured CUDA graphs need
their fixed addresses anyway.
"""

import numpy as np

from lopa.runtime.accelerator.device_memory import BufferSet
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.graph_signature import ArrayForm
from lopa.runtime.bundle.manifest import GraphTwin
from lopa.runtime.contract import stored_dtype
from lopa.runtime.cuda.cuda_memory import CudaMemory


def fused_weights(bundle: Bundle, twin: GraphTwin, memory: CudaMemory) -> dict[str, tuple[ArrayForm, int]]:
    """Return the fused matrices and biases of `twin` with their addresses in `memory`, which frees them."""
    records = bundle.manifest.tensors
    forms = [ArrayForm(tuple(fused.shape(records)), stored_dtype(fused.dtype(records))) for fused in twin.fused]
    if not forms:
        return {}
    buffers = BufferSet(memory, [form.size for form in forms]).buffers
    stored = np.memmap(bundle.weights, np.uint8, mode="r")
    for fused, buffer in zip(twin.fused, buffers, strict=True):
        parts = [
            stored[record.offset : record.offset + record.length].reshape([1, *record.shape[:-1]][-1], -1)
            for record in (records[part] for part in fused.parts)
        ]
        address = buffer.address
        for rows in [parts] if fused.axis else [[part] for part in parts]:
            memory.upload_side_by_side(address, rows)
            address += sum(part.nbytes for part in rows)
    return {fused.name: (form, buffer.address) for fused, form, buffer in zip(twin.fused, forms, buffers, strict=True)}
