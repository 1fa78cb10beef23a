"""Bundles whose quantized matrices stay in the mapped file: equal results, no copies, and the choice of the form."""

import logging
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.export.checkpoints import small_checkpoint
from tests.export.graph_runs import statistics_of
from tests.runtime.random_windows import random_batch
from tests.runtime.sequential import sequential

from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.export.verify.report import report_from_bundle
from lopa.export.weights.plan import Dtype
from lopa.export.weights.quantization import QuantizationChoice
from lopa.runtime.bundle import Bundle, quantized_form
from lopa.runtime.cpu_kernels.kernel_library import DOMAIN, kernel_library
from lopa.runtime.errors import BadInputError
from lopa.runtime.sessions.session import open_session
from lopa.tiny import CHECKPOINT

needs_kernels = pytest.mark.skipif(kernel_library() is None, reason="the kernels need x86-64 and a C++ compiler")
both = pytest.mark.parametrize("tiny_quantized", ["int8", "int4"], indirect=True)


@pytest.fixture(autouse=True)
def no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(quantized_form.VARIABLE, raising=False)


def operators(graph: Path) -> Counter[tuple[str, str]]:
    """Return the number of nodes of every (domain, operator)."""
    return Counter((node.domain, node.op_type) for node in onnx.load(graph, load_external_data=False).graph.node)


def rows_of_last_layer(graph: Path) -> set[str]:
    """Return the names of the nodes that select the sampled rows (lopa.export.cpu_graph.sampled_rows)."""
    nodes = onnx.load(graph, load_external_data=False).graph.node
    return {node.name for node in nodes if node.name.startswith("wanted/")}


@both
def test_every_product_is_replaced(tiny_quantized: Path) -> None:
    bundle = Bundle.open(tiny_quantized)
    graph = bundle.twin("cpu", "mapped")
    assert graph is not None
    found = operators(graph)
    assert bundle.manifest.quantization is not None
    operator = {"int8": "MatMulInt8", "int4": "MatMulInt4"}[bundle.manifest.quantization.kind]
    assert found[DOMAIN, operator] == 36
    assert not found["", "MatMul"]
    assert not found["", "DequantizeLinear"]
    assert not found["com.microsoft", "MatMulIntegerToFloat"]
    packed = bundle.twin("cpu")
    assert packed is not None
    assert rows_of_last_layer(graph) == rows_of_last_layer(packed) != set()


@needs_kernels
@pytest.mark.parametrize("tiny_quantized", ["int8"], indirect=True)
def test_int8_results_equal_those_of_onnxruntime(tiny_quantized: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = Bundle.open(tiny_quantized)
    mapped = statistics_of(bundle)
    monkeypatch.setenv(quantized_form.VARIABLE, "packed")
    packed = statistics_of(bundle)
    for name in ("topk_ids", "topk_logprobs", "entropy"):
        assert (getattr(mapped, name) == getattr(packed, name)).all()


@needs_kernels
@both
@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="reads Linux's list of mapped memory")
def test_matrices_are_read_in_the_mapped_file(tiny_quantized: Path) -> None:
    bundle = Bundle.open(tiny_quantized)
    session = open_session(bundle, "cpu", threads=1)
    try:
        sequential(session).forward(random_batch(np.random.default_rng(0), [0], 1, 8, 8))
        sizes = mapped_bytes(bundle.weights)
    finally:
        session.close()
    matrices = [record for record in bundle.manifest.tensors.values() if record.dtype in ("int8", "int4")]
    assert sizes["Rss"] >= sum(record.length for record in matrices)
    assert sizes["Private_Dirty"] == sizes["Anonymous"] == 0


def mapped_bytes(path: Path) -> Counter[str]:
    """Return the bytes of each kind of this process's memory that maps the file at `path`."""
    sizes: Counter[str] = Counter()
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            inside = line.endswith(str(path.resolve()))
        elif inside and rest[-1] == "kB":
            sizes[name.removesuffix(":")] += int(rest[0]) * 1024
    return sizes


@pytest.mark.usefixtures("few_cases")
@needs_kernels
@both
def test_verify_checks_the_form_in_use(tiny_quantized: Path) -> None:
    report = report_from_bundle(Bundle.open(tiny_quantized))
    assert report.ok
    assert {"cpu/entropy", "cpu-mapped/entropy"} <= {error.output for error in report.errors}


@needs_kernels
def test_the_form_is_reported_and_requested(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bundle = bundle_from_checkpoint(CHECKPOINT, tmp_path / "bundle", quantization=QuantizationChoice("int8"), stages=2)
    with caplog.at_level(logging.INFO):
        assert quantized_form.cpu_form(bundle) == "mapped"
    assert "int8 weights are read in place" in caplog.text
    assert (statistics_of(bundle, "cpu+cpu").entropy == statistics_of(bundle).entropy).all()
    monkeypatch.setenv(quantized_form.VARIABLE, "packed")
    assert quantized_form.cpu_form(bundle) == "packed"
    monkeypatch.setenv(quantized_form.VARIABLE, "auto")
    assert quantized_form.cpu_form(bundle) == "mapped"
    assert quantized_form.cpu_form(Bundle.open(tiny_bundle)) == "packed"


@needs_kernels
@pytest.mark.parametrize("tiny_quantized", ["fp8"], indirect=True)
def test_fp8_has_one_form(
    tiny_quantized: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(quantized_form.VARIABLE, "mapped")
    with caplog.at_level(logging.INFO):
        assert quantized_form.cpu_form(Bundle.open(tiny_quantized)) == "packed"
    assert "no graph for LOPA_WEIGHTS=mapped; FP8 matrices have none" in caplog.text
    assert "fp8 weights are converted to float32" in caplog.text


def test_an_installation_without_kernels(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = bundle_from_checkpoint(CHECKPOINT, tmp_path / "bundle", quantization=QuantizationChoice("int8"))
    monkeypatch.setattr(quantized_form, "kernel_library", lambda: None)
    assert quantized_form.cpu_form(bundle) == "packed"
    monkeypatch.setenv(quantized_form.VARIABLE, "mapped")
    assert quantized_form.cpu_form(Bundle.open(tiny_bundle)) == "packed"
    with pytest.raises(BadInputError, match="LOPA_WEIGHTS=mapped, but the kernels"):
        open_session(bundle, "cpu")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_products_with_an_odd_number_of_outputs_stay(tmp_path: Path, dtype: Dtype) -> None:
    changes = {"intermediate_size": 96, "vocab_size": 33}
    checkpoint = small_checkpoint(tmp_path / "checkpoint", changes=changes)
    bundle = bundle_from_checkpoint(
        checkpoint, tmp_path / "bundle", quantization=QuantizationChoice("int4"), dtype=dtype
    )
    graph = bundle.twin("cpu", "mapped")
    assert graph is not None
    found = operators(graph)
    assert found["", "MatMul"] == found["", "DequantizeLinear"] == 1  # the head
    assert found[DOMAIN, "MatMulInt4" if dtype == "float32" else "MatMulInt4HalfScales"] == 14
    batch = random_batch(np.random.default_rng(0), [0], 2, 8, 8)
    found, expected = (statistics_of(bundle, device, batch).topk_logprobs for device in ("cpu", "numpy"))
    assert found == pytest.approx(expected, abs=0.05)
