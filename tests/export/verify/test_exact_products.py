"""int4 graphs with activations that ONNX Runtime rounds, or leaves in float32, as verification does."""

from pathlib import Path

import pytest

from lopa.export.verify.report import report_from_bundle
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.quantized_form import VARIABLE
from lopa.runtime.contract.model_part import whole_model
from lopa.runtime.sessions.onnxruntime_graph import open_part_graph


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


@pytest.mark.usefixtures("few_cases")
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
