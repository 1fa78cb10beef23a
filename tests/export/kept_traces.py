"""Cache of graphs that torch's exporter traces: tracing takes seconds, all later steps are fast.

The first export of a size, dialect, type and part in a run traces. Other exports read its result, also in other workers
and in processes with in_processes/ on their PYTHONPATH. Cached graphs differ from fresh ones only by numbers in names
of values. They are traced with logits; an export without logits removes that output. test_kept_traces.py verifies this.

RECORDED has the traces of a complete run. A trace belongs to a key (`trace_name`). These changes need other traces: of
the traced code (SOURCES), a network's tensors, a graph's inputs and outputs, or a tracing library's version. Comments,
docstrings, passes after the trace and all other modules do not matter. After such a change each checkout traces once
(200 s of processor time in all), until a complete run is recorded:

    mkdir -p out && pytest --basetemp out/tests && python -m tests.export.kept_traces out/tests/traces
"""

import ast
import gc
import hashlib
import inspect
import lzma
import os
import platform
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import onnx
import onnx_ir as ir
from onnx_ir import serde
from tests.shared_folder import locked
from torch.onnx._internal.exporter._registration import ONNXRegistry

from lopa.export.graph import (
    canvas_draw,
    canvas_module,
    experts,
    module,
    portable_canvas,
    portable_module,
    torch_graph,
    traced_forms,
)
from lopa.runtime.bundle.manifest import Dialect, ModelDimensions
from lopa.runtime.bundle.network import network_from_dimensions
from lopa.runtime.contract import LOGITS, TOP_K
from lopa.runtime.contract.model_part import ModelPart

RECORDED = Path(__file__).resolve().parents[1] / "reference" / "onnx_traces.tar.xz"
SOURCES: tuple[Any, ...] = (torch_graph.traced_graph, traced_forms, module, portable_module, experts)
"""Code that determines a trace. What it reads of other modules is in the key as values."""
EARLIER = Path(__file__).resolve().parents[2] / ".pytest_cache" / "d" / "export_traces"
"""Traces of earlier runs in this checkout. `pytest --cache-clear` deletes them."""
_TRACERS = ("torch", "onnxscript", "onnx-ir", "onnx", "sympy", "numpy")
traced_by_the_exporter = torch_graph.traced_graph
ONNXRegistry.from_torchlib = staticmethod(cache(ONNXRegistry.from_torchlib))
"""Cache of torch's operator library, which each export would read again in two thirds of a second."""


def kept_traces(folder: Path) -> Callable[..., ir.Model]:
    """Return a replacement of lopa.export.graph.torch_graph.traced_graph. It stores each requested one in `folder`."""

    def traced_graph(
        dimensions: ModelDimensions, dialect: Dialect, dtype: str, part: ModelPart, *, with_logits: bool
    ) -> ir.Model:
        arguments: tuple[Any, ...] = (dimensions, dialect, dtype, part)
        kept = folder / trace_name(*arguments)
        with locked(kept):
            if not kept.exists():
                places = (recorded_traces(folder), EARLIER)
                found = next((place / kept.name for place in places if (place / kept.name).exists()), None)
                if found is None:
                    with unmeasured():
                        made = traced_by_the_exporter(*arguments, with_logits=True)
                    found = _stored(kept.name, _bytes(made))
                shutil.copyfile(found, kept)
        model = serde.deserialize_model(onnx.load_model_from_string(kept.read_bytes()))
        if part.is_last and not with_logits:
            logits = model.graph.outputs.pop()
            assert logits.name == LOGITS
            logits.name = "removed_logits"
        return model

    return traced_graph


def trace_name(dimensions: ModelDimensions, dialect: Dialect, dtype: str, part: ModelPart) -> str:
    """Return a digest of everything that determines a trace. Defaults of new dimensions do not change it."""
    network = network_from_dimensions(dimensions)
    names = traced_forms.TRACED_FORMS[dialect].input_names(part), part.output_names(with_logits=True)
    own = () if dimensions.canvas is None else tuple(map(_code_of, (canvas_draw, canvas_module, portable_canvas)))
    tensors = [(name, spec.shape, spec.is_float32) for name, spec in network.tensors.items()]
    arguments = (dialect, dtype, part, names, TOP_K, [layer.kind for layer in network.layers], tensors)
    basis_of_form = (*basis(), *own)
    return hashlib.sha256(msgspec.json.encode(dimensions) + repr((arguments, basis_of_form)).encode()).hexdigest()


@cache
def basis() -> tuple[str, ...]:
    """Return the versions of the tracing libraries and the syntax trees of SOURCES."""
    return (*platform.python_version_tuple()[:2], *map(version, _TRACERS), *map(_code_of, SOURCES))


def _code_of(source: Any) -> str:
    """Return the syntax tree of a module or function without docstrings, as text."""
    tree = ast.parse(inspect.getsource(source))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [each for each in node.body if not (isinstance(each, ast.Expr) and _is_text(each.value))]
    return ast.dump(tree)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def recorded_traces(folder: Path) -> Path:
    """Return the folder of the traces in RECORDED; the first call unpacks them into `folder`."""
    unpacked = folder / "recorded"
    with locked(unpacked):
        if not unpacked.exists():
            with tarfile.open(RECORDED) as archive:
                archive.extractall(unpacked, filter="data")
    return unpacked


def record(folder: Path) -> None:
    """Write all traces of a run to RECORDED. Equal files give equal bytes."""
    with (
        lzma.open(RECORDED, "wb", preset=9 | lzma.PRESET_EXTREME) as packed,
        tarfile.open(fileobj=packed, mode="w") as out,
    ):
        for kept in sorted(path for path in folder.iterdir() if path.is_file() and not path.suffix):
            member = tarfile.TarInfo(kept.name)
            member.size = kept.stat().st_size
            with kept.open("rb") as content:
                out.addfile(member, content)


def _stored(name: str, trace: bytes) -> Path:
    """Write a trace to EARLIER, so that other processes see all of it or nothing. Return its path."""
    EARLIER.mkdir(parents=True, exist_ok=True)
    unfinished = EARLIER / f"{name}.{os.getpid()}"
    unfinished.write_bytes(trace)
    return unfinished.replace(EARLIER / name)


@contextmanager
def unmeasured() -> Iterator[None]:
    """Disable coverage and garbage collection for torch's exporter, which torch's own tests cover. Coverage doubles its
    time, and garbage collection adds a tenth.
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
    """Return the serialized model; its initializers refer to a missing file, because they have no values."""
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        value.const_value = ir.ExternalTensor("nowhere", 0, tensor.nbytes, tensor.dtype, shape=tensor.shape, name=name)
    return bytes(serde.serialize_model(model).SerializeToString())


if __name__ == "__main__":
    record(Path(sys.argv[1]))
