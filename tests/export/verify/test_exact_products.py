"""int4 graphs in plain ONNX Runtime, with activations rounded by default or left in float32, and in verification."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from tests.runtime.random_windows import random_batch
from tests.runtime.sequential import sequential

from lopa.export.verify.report import report_from_bundle
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.quantized_form import VARIABLE
from lopa.runtime.contract.model_part import whole_model
from lopa.runtime.sessions.onnxruntime_graph import open_part_graph
from lopa.runtime.sessions.session import open_session

OPTION = "session.qdq_matmulnbits_accuracy_level"
ROWS = 32


def errors_of_plain_session(bundle: Bundle, level: str | None) -> tuple[float, int]:
    """Return the largest error of a log-probability, and the number of other best tokens, compared with numpy.

    The bundle's model.onnx is opened as in docs/reference/bundle.md.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    if level is not None:
        options.add_session_config_entry(OPTION, level)
    session = ort.InferenceSession(str(bundle.graph), options, providers=["CPUExecutionProvider"])
    sizes, oracle = bundle.manifest.dimensions, open_session(bundle, "numpy")
    past = np.zeros((1, sizes.kv_heads, ROWS, sizes.head_size), np.float32)
    largest, others = 0.0, 0
    for seed in range(3):
        batch = random_batch(np.random.default_rng(seed), [0], 1, ROWS, ROWS)
        batch = replace(batch, temperature=np.ones(1, np.float32))
        expected = sequential(oracle).forward(batch)
        oracle.free(0)
        names = ("input_ids", "position_ids", "window_mask", "logits_index", "temperature")
        inputs = {name: getattr(batch, name) for name in names} | {"prefix_mask": np.zeros((1, ROWS), np.bool_)}
        inputs |= {value.name: past for value in session.get_inputs() if value.name.startswith("past")}
        ids, logprobs = session.run(["topk_ids", "topk_logprobs"], inputs)
        largest = max(largest, float(np.abs(logprobs - expected.topk_logprobs).max()))
        others += int((ids[..., 0] != expected.topk_ids[..., 0]).sum())
    return largest, others


@pytest.mark.parametrize("tiny_quantized", ["int4"], indirect=True)
def test_plain_onnx_runtime_rounds_activations_unless_the_option_is_set(tiny_quantized: Path) -> None:
    """If the default changes in a new ONNX Runtime, the page about bundles has to change too."""
    bundle = Bundle.open(tiny_quantized)
    assert errors_of_plain_session(bundle, "4") == errors_of_plain_session(bundle, None)
    assert errors_of_plain_session(bundle, None)[0] > 0.1
    for level in ("0", "1"):
        largest, others = errors_of_plain_session(bundle, level)
        assert largest < 1e-3
        assert others == 0


@pytest.mark.parametrize("tiny_quantized", ["int4"], indirect=True)
def test_exact_and_rounded_graphs_of_one_file_are_separate(
    tiny_quantized: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may have both open at once, so the second must not get the first one's graph."""
    monkeypatch.setenv(VARIABLE, "packed")
    bundle = Bundle.open(tiny_quantized).with_twins()
    part = whole_model(bundle.manifest.dimensions.layers)
    rounded = open_part_graph(bundle, part, "cpu", 1)
    exact = open_part_graph(bundle, part, "cpu", 1, exact=True)
    assert exact is not rounded
    assert exact is open_part_graph(bundle, part, "cpu", 1, exact=True)


def test_verification_of_the_graph_itself_rounds_no_activations(tiny_quantized: Path) -> None:
    """An int4 graph has the tolerance of float32. In int8 graphs, nodes round activations."""
    bundle = Bundle.open(tiny_quantized)
    assert bundle.manifest.quantization is not None
    is_int4 = bundle.manifest.quantization.kind == "int4"
    report = report_from_bundle(bundle)
    assert report.ok
    own = [error for error in report.errors if "/" not in error.output]
    assert {error.by_rms for error in own} == {not is_int4}
    assert {error.by_rms for error in report.errors if error.output.startswith("cpu")} == {True}
