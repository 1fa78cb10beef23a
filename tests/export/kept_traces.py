"""A cache of the traces of torch's exporter. A trace takes seconds; the rest of an export does not.

The first export of a size, dialect, type and part in a test run traces. Later exports read that trace, also those of
other workers and of processes with in_processes/ on their PYTHONPATH. The graph is the same except for numbers in the
names of values. Every trace has logits; for an export without them that output is removed. test_kept_traces.py checks
that this gives the exporter's own graph.

RECORDED holds the traces of a whole run. A recorded trace is used only for what it was made from: the same arguments,
the same code of what is traced (comments and docstrings aside), the same versions of everything that traces. After a
change of any of these, runs trace again, which takes 200 s of processor time, until a whole run is recorded:

    pytest --basetemp out/tests && python -m tests.export.kept_traces out/tests/traces
"""

import ast
import fcntl
import gc
import hashlib
import lzma
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

import onnx
import onnx_ir as ir
from onnx_ir import serde
from torch.onnx._internal.exporter._registration import ONNXRegistry

from lopa.export.graph import module, portable_module, trace, traced_forms
from lopa.export.weights import torch_dtypes
from lopa.runtime.bundle import network
from lopa.runtime.bundle.manifest import Dialect, ModelDimensions
from lopa.runtime.contract import LOGITS, forward, model_part, portable_form
from lopa.runtime.contract.model_part import ModelPart

RECORDED = Path(__file__).resolve().parents[1] / "reference" / "onnx_traces.tar.xz"
SOURCES = (trace, traced_forms, module, portable_module, torch_dtypes, network, forward, model_part, portable_form)
"""Our modules that determine the trace of given arguments."""
_TRACERS = ("torch", "onnxscript", "onnx-ir", "onnx", "sympy", "numpy")
traced_by_the_exporter = trace.traced_graph
ONNXRegistry.from_torchlib = staticmethod(cache(ONNXRegistry.from_torchlib))
"""torch would otherwise read its operator library for each export, which takes two thirds of a second."""


def kept_traces(folder: Path) -> Callable[..., ir.Model]:
    """Return a replacement for lopa.export.graph.trace.traced_graph that writes each requested trace to `folder`."""

    def traced_graph(
        dimensions: ModelDimensions, dialect: Dialect, dtype: str, part: ModelPart, *, with_logits: bool
    ) -> ir.Model:
        arguments: tuple[Any, ...] = (dimensions, dialect, dtype, part)
        kept = folder / trace_name(*arguments)
        with kept.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                recorded = recorded_traces(folder) / kept.name
                if recorded.exists():
                    shutil.copyfile(recorded, kept)
                else:
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


def trace_name(*arguments: object) -> str:
    """Return the file name of a trace. It differs for other arguments, other traced code and other versions."""
    return hashlib.sha256(repr((arguments, basis())).encode()).hexdigest()


@cache
def basis() -> tuple[str, ...]:
    """Return everything that a trace depends on besides its arguments."""
    sources = [Path(str(each.__file__)).read_text(encoding="utf-8") for each in SOURCES]
    return (*platform.python_version_tuple()[:2], *map(version, _TRACERS), *map(code_without_texts, sources))


def code_without_texts(source: str) -> str:
    """Return the syntax tree of Python source without comments, docstrings and line numbers."""

    class WithoutTexts(ast.NodeTransformer):
        def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
            is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
            return None if is_text else node

    return ast.dump(WithoutTexts().visit(ast.parse(source)))


def recorded_traces(folder: Path) -> Path:
    """Return the folder of the recorded traces. The first call unpacks RECORDED into `folder`."""
    unpacked = folder / "recorded"
    with (folder / "recorded.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not unpacked.exists():
            with tarfile.open(RECORDED) as archive:
                archive.extractall(unpacked, filter="data")
    return unpacked


def record(folder: Path) -> None:
    """Write the traces in `folder` to RECORDED. The same files give the same bytes."""
    with (
        lzma.open(RECORDED, "wb", preset=9 | lzma.PRESET_EXTREME) as packed,
        tarfile.open(fileobj=packed, mode="w") as out,
    ):
        for kept in sorted(path for path in folder.iterdir() if path.is_file() and not path.suffix):
            member = tarfile.TarInfo(kept.name)
            member.size = kept.stat().st_size
            with kept.open("rb") as content:
                out.addfile(member, content)


@contextmanager
def unmeasured() -> Iterator[None]:
    """Switch off coverage and garbage collection, which more than double the time of torch's exporter.

    Other tests cover what the exporter runs.
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
    """Serialize a graph whose tensors have no values, by declaring their values external."""
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        value.const_value = ir.ExternalTensor("nowhere", 0, tensor.nbytes, tensor.dtype, shape=tensor.shape, name=name)
    return bytes(serde.serialize_model(model).SerializeToString())


if __name__ == "__main__":
    record(Path(sys.argv[1]))
