"""Cache of graphs that torch's exporter traces: tracing takes seconds, all later steps are fast.

The first export of a size, dialect, type and part in a run traces. Other exports read its result, also in other workers
and in processes with in_processes/ on their PYTHONPATH. Cached graphs differ from fresh ones only by numbers in names
of values. They are traced with logits; an export without logits removes that output. test_kept_traces.py verifies this.

RECORDED has the traces of a complete run. A trace applies to the same arguments, code and versions of all tracing
libraries. Comments and docstrings do not matter. After other changes, the next run in each checkout traces again (200 s
of processor time in all) until a complete run is recorded:

    pytest --basetemp out/tests && python -m tests.export.kept_traces out/tests/traces
"""

import ast
import fcntl
import gc
import hashlib
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
from types import ModuleType
from typing import Any

import onnx
import onnx_ir as ir
from onnx_ir import serde
from torch.onnx._internal.exporter._registration import ONNXRegistry

from lopa.export.graph import module, portable_module, torch_graph, traced_forms
from lopa.export.weights import torch_dtypes
from lopa.runtime.bundle import network
from lopa.runtime.bundle.manifest import Dialect, ModelDimensions
from lopa.runtime.contract import LOGITS, forward, model_part, portable_form
from lopa.runtime.contract.model_part import ModelPart

RECORDED = Path(__file__).resolve().parents[1] / "reference" / "onnx_traces.tar.xz"
SOURCES = (
    torch_graph,
    traced_forms,
    module,
    portable_module,
    torch_dtypes,
    network,
    forward,
    model_part,
    portable_form,
)
"""Modules of this project that determine a trace, in addition to its arguments."""
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
        with kept.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
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


def trace_name(*arguments: object) -> str:
    """Return a digest of the arguments, the code that is traced, and the versions of the tracing libraries."""
    return hashlib.sha256(repr((arguments, basis())).encode()).hexdigest()


@cache
def basis() -> tuple[str, ...]:
    """Return everything that determines a trace besides its arguments."""
    return (*platform.python_version_tuple()[:2], *map(version, _TRACERS), *map(_code_of, SOURCES))


def _code_of(module: ModuleType) -> str:
    """Return the syntax tree of a module without docstrings, as text."""
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [statement for statement in node.body if not _is_docstring(statement)]
    return ast.dump(tree)


def _is_docstring(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def recorded_traces(folder: Path) -> Path:
    """Return the folder of the traces in RECORDED; the first call unpacks them into `folder`."""
    unpacked = folder / "recorded"
    with (folder / "recorded.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
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
