"""Traces of torch's exporter, kept for a whole test run: one takes seconds, and whatever is done to it after does not.

The first export of a size, dialect, type, part and choice of logits traces; others in the run, also of other workers
and of processes that have in_processes/ on their PYTHONPATH, read what it gave. That is the same graph but for the
numbers in the names of values.
"""

import fcntl
import gc
import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from onnx_ir import serde
from torch.onnx._internal.exporter._registration import ONNXRegistry

from lopa.export.graph import trace

_traced = trace.traced_graph
ONNXRegistry.from_torchlib = staticmethod(cache(ONNXRegistry.from_torchlib))
"""torch reads its library of operators anew for each export, in two thirds of a second."""


def kept_traces(folder: Path) -> Callable[..., ir.Model]:
    """In place of traced_graph of lopa.export.graph.trace."""

    def traced_graph(*arguments: Any, **options: Any) -> ir.Model:
        kept = folder / hashlib.sha256(repr((arguments, options)).encode()).hexdigest()
        with kept.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                with _unmeasured():
                    made = _traced(*arguments, **options)
                kept.write_bytes(_bytes(made))
        return serde.deserialize_model(onnx.load_model_from_string(kept.read_bytes()))

    return traced_graph


@contextmanager
def _unmeasured() -> Iterator[None]:
    """Without coverage, which makes torch's exporter take twice as long. What is traced is run by tests of its own.

    And without a search for garbage: another tenth of its time.
    """
    measuring = sys.gettrace()
    sys.settrace(None)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        sys.settrace(measuring)


def _bytes(model: ir.Model) -> bytes:
    """Its tensors have no values: that they lie in a file is said in their place."""
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        value.const_value = ir.ExternalTensor("nowhere", 0, tensor.nbytes, tensor.dtype, shape=tensor.shape, name=name)
    return bytes(serde.serialize_model(model).SerializeToString())
