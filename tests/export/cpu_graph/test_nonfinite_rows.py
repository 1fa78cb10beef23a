"""NaN and infinity reach the answer in every form of quantized weights, wherever in a row they are."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from tests.export.checkpoints import HALF_OF_TESTS, small_checkpoint
from tests.export.graph_runs import statistics_of
from tests.outcomes import outcomes
from tests.runtime.random_windows import random_batch

from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.export.cpu_graph.nonfinite_rows import NonFiniteRowsPass
from lopa.export.cpu_graph.rounded_rows import RoundedRowsPass
from lopa.export.graph.quantize_pass import QuantizedMatricesPass, QuantizedMatrix
from lopa.export.weights.plan import Dtype, QuantizedKind
from lopa.export.weights.quantization import QuantizationChoice
from lopa.runtime import Decoder, NonFiniteAnswerError
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.quantized_form import VARIABLE
from lopa.runtime.cpu_kernels.kernel_library import kernel_library

RNG = np.random.default_rng(55)
FORMS = ("mapped", "packed")


def _product(kind: str, inputs: int, dtype: ir.DataType = ir.DataType.FLOAT) -> ir.Model:
    """Return a graph of one product with an int8 or int4 matrix, in the form of ONNX Runtime's kernels."""
    x = ir.Value(name="x", shape=ir.Shape(["rows", inputs]), type=ir.TensorType(dtype))
    matrix = ir.Value(name="w", shape=ir.Shape([inputs, 6]), type=ir.TensorType(dtype))
    node = ir.node("MatMul", [x, matrix], name="product")
    result = node.outputs[0]
    result.name, result.shape, result.type = "y", ir.Shape(["rows", 6]), ir.TensorType(dtype)
    graph = ir.Graph([x], [result], nodes=[node], initializers=[matrix], opset_imports={"": 23})
    int8 = kind == "int8"
    integers = RNG.integers(-7, 8, (inputs, 6)).astype(np.int8)
    stored = ir.tensor(integers, dtype=ir.DataType.INT8 if int8 else ir.DataType.INT4, name="w")
    scales = 1e-3 * RNG.random(6 if int8 else (inputs // 32, 6))
    scales = scales.astype(np.float32 if int8 else dtype.numpy())
    quantized = QuantizedMatrix(stored, ir.tensor(scales, name="w_scale"))
    model = QuantizedMatricesPass({"w": quantized})(ir.Model(graph, ir_version=11)).model
    assert (RoundedRowsPass() if int8 else NonFiniteRowsPass())(model).modified
    return model


def _run(model: ir.Model, x: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "4")
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    dtype = model.graph.inputs[0].dtype
    assert dtype is not None
    return np.asarray(session.run(None, {"x": x.astype(dtype.numpy())})[0])


@pytest.mark.parametrize(("kind", "inputs"), [("int8", 1), ("int8", 37), ("int8", 96), ("int4", 32), ("int4", 96)])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_every_place_of_a_row(kind: str, inputs: int, value: float) -> None:
    model = _product(kind, inputs)
    x = RNG.standard_normal((inputs, inputs))
    x[np.diag_indices(inputs)] = value
    assert not np.isfinite(_run(model, x)).any()


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_finite_rows_keep_their_results(kind: str) -> None:
    """Zeros, and rows of every size: infinite sums of int8 rows are bounded."""
    model = _product(kind, 64)
    x = RNG.standard_normal((9, 64))
    alone = _run(model, x)
    x[4], x[7, 5] = 0, np.nan
    among_others = _run(model, x)
    assert (among_others[[0, 1, 2, 3, 5, 6, 8]] == alone[[0, 1, 2, 3, 5, 6, 8]]).all()
    assert (among_others[4] == 0).all()
    for size in (1e38, -1e38) if kind == "int8" else (1e34, -1e34):
        large = _run(model, np.full((1, 64), size))
        assert large / size == pytest.approx(_run(model, np.ones((1, 64))), rel=1e-5)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_sums_of_float16_rows_may_exceed_float16(kind: str) -> None:
    model = _product(kind, 1024, ir.DataType.FLOAT16)
    x = np.full((3, 1024), 100.0)
    x[1, 700] = np.nan
    assert np.isfinite(_run(model, x)).all(axis=1).tolist() == [True, False, True]


def _with_number(bundle: Path, target: Path, tensor: str, place: int, value: float) -> Bundle:
    """Copy `bundle`, and write `value` into a float tensor."""
    shutil.copytree(bundle, target, dirs_exist_ok=True)
    opened = Bundle.open(target)
    record = opened.manifest.tensors[tensor]
    (target / opened.manifest.weights).chmod(0o644)
    content = np.memmap(opened.weights, np.uint8, mode="r+")
    dtype = np.float16 if record.dtype == "float16" else np.float32
    content[record.offset : record.offset + record.length].view(dtype)[place] = value
    content.flush()
    return Bundle.open(target)


def _broken(bundle: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Bundle]]:
    """Yield bundles with a NaN in the first, middle or last number of a norm, for each form."""
    forms = [form for form in FORMS if form == "packed" or kernel_library() is not None]
    norms = [name for name in Bundle.open(bundle).manifest.tensors if name.endswith("norm.weight")]
    size = Bundle.open(bundle).manifest.tensors[norms[0]].shape[0]
    for norm, place in ((norms[0], size // 2), (norms[1], 1), (norms[1], 0), (norms[-1], size - 1)):
        opened = _with_number(bundle, target, norm, place, np.nan)
        for form in forms:
            monkeypatch.setenv(VARIABLE, form)
            yield f"{form} {norm} {place}", opened


@pytest.mark.parametrize("tiny_quantized", ["int8", "int4", "fp8"], indirect=True)
def test_decodes_fail(tiny_quantized: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for where, bundle in _broken(tiny_quantized, tmp_path / "bundle", monkeypatch):
        with Decoder.open(bundle.path, threads=1) as decoder:
            (outcome,) = outcomes(decoder, ["Question: 2 + 3?\nAnswer:"], config=decoder.config(max_new_tokens=16))
        assert isinstance(outcome, NonFiniteAnswerError), where


def _is_finite(bundle: Bundle) -> bool:
    batch = random_batch(np.random.default_rng(0), [0], 2, 8, 8)
    return bool(np.isfinite(statistics_of(bundle, "cpu", batch).entropy).any())


@pytest.mark.parametrize("kind", ["int8", "int4", "fp8"])
def test_layers_of_experts(
    kind: str, family_bundle: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = family_bundle("llada2", quantize=kind)
    assert _is_finite(Bundle.open(source))
    for where, bundle in _broken(source, tmp_path / "bundle", monkeypatch):
        assert not _is_finite(bundle), where


ODD = {"intermediate_size": 96, "vocab_size": 33}
"""An odd number of outputs, which leaves the head to ONNX Runtime in every form."""


@pytest.mark.parametrize(
    ("kind", "dtype", "changes"),
    [("int8", "float16", HALF_OF_TESTS), ("int4", "float16", HALF_OF_TESTS), ("int4", "float32", ODD)],
)
def test_other_bundles(
    kind: QuantizedKind, dtype: Dtype, changes: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = small_checkpoint(tmp_path / "checkpoint", changes=changes)
    source = bundle_from_checkpoint(checkpoint, tmp_path / "source", dtype=dtype, quantization=QuantizationChoice(kind))
    assert _is_finite(source)
    for where, bundle in _broken(source.path, tmp_path / "bundle", monkeypatch):
        assert not _is_finite(bundle), where
