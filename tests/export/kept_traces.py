"""Traces of torch's exporter, kept for a whole test run: one takes seconds, and whatever is done to it after does not.

The first export of a size, dialect, type and part traces; others in the run, also of other workers and of processes
that have in_processes/ on their PYTHONPATH, read what it gave. That is the same graph but for the numbers in the names
of values. It is traced with logits, and where none are wanted, that output is taken away again: test_kept_traces.py
sees that no other graph comes of it.
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
from lopa.runtime.bundle.manifest import Dialect, ModelDimensions
from lopa.runtime.contract import LOGITS
from lopa.runtime.contract.model_part import ModelPart

traced_by_the_exporter = trace.traced_graph
ONNXRegistry.from_torchlib = staticmethod(cache(ONNXRegistry.from_torchlib))
"""torch reads its library of operators anew for each export, in two thirds of a second."""


def kept_traces(folder: Path) -> Callable[..., ir.Model]:
    """In place of traced_graph of lopa.export.graph.trace."""

    def traced_graph(
        dimensions: ModelDimensions, dialect: Dialect, dtype: str, part: ModelPart, *, with_logits: bool
    ) -> ir.Model:
        arguments: tuple[Any, ...] = (dimensions, dialect, dtype, part)
        kept = folder / hashlib.sha256(repr(arguments).encode()).hexdigest()
        with kept.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                with unmeasured():
                    made = traced_by_the_exporter(*arguments, with_logits=True)
                kept.write_bytes(_bytes(made))
        model = serde.deserialize_model(onnx.load_model_from_string(kept.read_bytes()))
        if part.is_last and not with_logits:
            unwanted = model.graph.outputs.pop()
            assert unwanted.name == LOGITS
            unwanted.name = "wanted_logits"
        return model

    return traced_graph


@contextmanager
def unmeasured() -> Iterator[None]:
    """Without coverage, which makes torch's exporter take twice as long. What it runs is run by tests of its own.

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
