"""Twins for CPUs: the export makes them, sessions use them, verify checks them, stale ones are rejected."""

import json
import shutil
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from tests.export.checkpoints import ONE_LAYER, small_checkpoint
from tests.export.graph_runs import statistics_of

from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.export.cpu_graph import twin
from lopa.export.verify.report import report_from_bundle
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import MANIFEST_NAME
from lopa.runtime.contract import ENTROPY
from lopa.runtime.errors import BadInputError
from lopa.tiny import CHECKPOINT


class MoreEntropyPass(ir.passes.InPlacePass):
    """Pass that adds one to the entropy, which identifies a twin. Other graphs stay unchanged."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        for node in model.graph:
            if node.outputs[0].name == ENTROPY:
                one = ir.node("Constant", [], {"value_float": 1.0}, name="one")
                more = ir.node("Add", [node.outputs[0], one.outputs[0]], name="more")
                node.append([one, more])
                old, new = node.outputs[0], more.outputs[0]
                new.name, new.shape, new.type, old.name = ENTROPY, old.shape, old.type, "less"
                model.graph.outputs[model.graph.outputs.index(old)] = new
                return ir.passes.PassResult(model, modified=True)
        return ir.passes.PassResult(model, modified=False)


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    """Return a bundle of two stages whose twins have a deliberate error."""
    monkeypatch.setattr(twin, "cpu_passes", lambda *_: [MoreEntropyPass()])
    return bundle_from_checkpoint(CHECKPOINT, tmp_path / "bundle", stages=2)


def entropy(bundle: Bundle, device: str = "cpu") -> float:
    """Return the entropy of one row of a fixed window."""
    return float(statistics_of(bundle, device).entropy[0, 0, 0])


def edit_manifest(bundle: Bundle, **fields: object) -> None:
    path = bundle.path / MANIFEST_NAME
    path.write_text(json.dumps(json.loads(path.read_bytes()) | fields))


def test_twins_are_listed_and_run_on_the_cpu_alone(bundle: Bundle) -> None:
    names = [(each.source, each.graph) for each in bundle.manifest.twins if each.provider == "cpu"]
    assert names == [  # the first stage has no statistics and so no twin
        ("model.onnx", "model.cpu.onnx"),
        ("model.stage-1-of-2.onnx", "model.stage-1-of-2.cpu.onnx"),
    ]
    assert {graph for _, graph in names} <= {record.path for record in bundle.manifest.files}
    plain = entropy(bundle, "numpy")
    assert entropy(bundle) == pytest.approx(plain + 1, abs=1e-4)
    assert entropy(bundle, "cpu+cpu") == pytest.approx(plain + 1, abs=1e-4)
    assert entropy(bundle.with_twins()) == pytest.approx(plain, abs=1e-4)
    assert entropy(bundle.with_twins(), "cpu+cpu") == pytest.approx(plain, abs=1e-4)


@pytest.mark.usefixtures("few_cases")
@pytest.mark.parametrize("device", ["cpu", "cpu+cpu"])
def test_verify_checks_the_graph_and_its_twin(bundle: Bundle, device: str) -> None:
    report = report_from_bundle(bundle, device=device)
    assert [error.output for error in report.errors if not error.ok] == ["cpu/entropy"]


def test_a_graph_that_was_altered_has_no_twin(bundle: Bundle) -> None:
    model = onnx.load(bundle.graph, load_external_data=False)
    model.doc_string = "another file"
    onnx.save(model, bundle.graph)
    assert bundle.twin("cpu") is None


def test_an_export_without_a_faster_form_has_no_twins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twin, "cpu_passes", lambda *_: [])
    checkpoint = small_checkpoint(tmp_path / "checkpoint", changes=ONE_LAYER)
    bundle = bundle_from_checkpoint(checkpoint, tmp_path / "bundle")
    assert "cpu" not in {each.provider for each in bundle.manifest.twins}
    assert not list(bundle.path.glob("*.cpu.onnx"))
    assert bundle.twin("cpu") is None


def test_twins_that_contradict_the_manifest_are_rejected(bundle: Bundle, tmp_path: Path) -> None:
    twins = json.loads((bundle.path / MANIFEST_NAME).read_bytes())["twins"]
    first, second = (each for each in twins if each["provider"] == "cpu")
    for fields, received in (
        ({"twins": [first | {"source": "model.onnx.data"}]}, "1 twins of 'model.onnx.data' for cpu"),
        ({"twins": [first, second | {"source": "model.onnx"}]}, "2 twins of 'model.onnx' for cpu"),
        ({"twins": [first | {"graph": "model.onnx.data"}]}, "'model.onnx.data' twice"),
        ({"twins": [first | {"graph": "other.onnx"}]}, "'other.onnx', which is not in its list"),
        ({"twins": [first | {"source_sha256": "0"}]}, "source_sha256"),
        ({"twins": [first | {"provider": "webgpu"}]}, "1 twins of 'model.onnx' for webgpu"),
        ({"twins": [first | {"form": "mapped"}]}, "but no quantized matrices"),
        ({"twins": [first | {"provider": "tpu"}]}, "tpu"),
    ):
        copy = Bundle(Path(shutil.copytree(bundle.path, tmp_path / "copy")), bundle.manifest)
        edit_manifest(copy, **fields)
        with pytest.raises(BadInputError, match=received):
            Bundle.open(copy.path)
        shutil.rmtree(copy.path)
