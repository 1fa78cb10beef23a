"""The portable graph of every type, together with the standard one, and its results."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import pytest
from tests.cli.make.test_verify import rewrite_digests
from tests.export.checkpoints import small_checkpoint

from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.export.graph.portable_lint import ALLOWED, violations_of_model
from lopa.export.verify.report import report_from_bundle
from lopa.export.weights.plan import Dtype
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import output_names
from lopa.runtime.contract.portable_form import portable_input_names
from lopa.runtime.errors import BadInputError

DTYPES: tuple[Dtype, ...] = ("float32", "float16", "bfloat16")


@pytest.fixture(scope="module", params=DTYPES)
def both(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Bundle:
    """Return a small random checkpoint with both graphs, in every type."""
    folder = tmp_path_factory.mktemp("both")
    checkpoint = small_checkpoint(folder / "checkpoint", changes={"num_hidden_layers": 1})
    return bundle_from_checkpoint(
        checkpoint, folder / "bundle", dtype=request.param, dialects=("standard", "portable"), with_logits=True
    )


def _graph(bundle: Bundle) -> onnx.ModelProto:
    return onnx.load(bundle.with_dialect("portable").graph, load_external_data=False)


def _external(model: onnx.ModelProto) -> dict[str, dict[str, str]]:
    return {
        tensor.name: {entry.key: entry.value for entry in tensor.external_data}
        for tensor in model.graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
    }


def test_the_two_graphs_share_one_file_of_weights(both: Bundle) -> None:
    twins = ["model.cpu.onnx"] if both.manifest.dtype != "bfloat16" else []
    names = [*twins, "model.cuda.onnx", "model.onnx", "model.onnx.data", "portable.onnx"]
    assert sorted(path.name for path in both.path.glob("*.onnx*")) == names
    portable, standard = _external(_graph(both)), _external(onnx.load(both.graph, load_external_data=False))
    assert portable == standard
    assert set(portable) == set(both.manifest.tensors)
    assert {place["location"] for place in portable.values()} == {"model.onnx.data"}
    assert {record.path for record in both.manifest.files} >= {"model.onnx", "portable.onnx", "model.onnx.data"}
    assert both.altered_files() == []


def test_the_bundle_gives_each_graph_alone(both: Bundle) -> None:
    assert both.dialects == ("standard", "portable")
    for dialect, name in (("standard", "model.onnx"), ("portable", "portable.onnx")):
        alone = both.with_dialect(dialect)
        assert (alone.graph.name, alone.dialects, alone.manifest.dialect) == (name, (dialect,), dialect)
        assert alone.with_dialect(dialect) == alone
    with pytest.raises(BadInputError, match="only a graph in the portable dialect"):
        both.with_dialect("portable").with_dialect("standard")


def test_the_graph_follows_the_dialect(both: Bundle) -> None:
    model = _graph(both)
    onnx.checker.check_model(str(both.with_dialect("portable").graph), full_check=True)
    assert [(each.domain, each.version) for each in model.opset_import] == [("", 17)]
    assert model.ir_version == 8
    assert {node.op_type for node in model.graph.node} <= ALLOWED
    assert violations_of_model(model) == []
    inferred = onnx.shape_inference.infer_shapes(model).graph
    values = (*inferred.input, *inferred.value_info, *inferred.output)
    assert max(len(value.type.tensor_type.shape.dim) for value in values) == 4
    small = [onnx.numpy_helper.to_array(each) for each in model.graph.initializer if not each.external_data]
    assert max(array.size for array in small) <= 16


def test_the_signature_is_the_portable_form_s(both: Bundle) -> None:
    model = _graph(both)
    kind = {"float32": onnx.TensorProto.FLOAT, "float16": onnx.TensorProto.FLOAT16}.get(both.manifest.dtype, 16)
    f32, i64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    past, fresh = (kind, [2, "2*requests", "prefix", 8]), (kind, ["requests", 2, "window", 8])
    expected_inputs = [
        (i64, ["requests", "window"]),
        *[(f32, ["requests", "window", 4])] * 2,
        (f32, ["requests", 1, "window", "window"]),
        (f32, ["requests", 1, 1, "prefix"]),
        (i64, ["rows"]),
        (f32, ["rows", 1]),
        past,
    ]
    expected_outputs = [(i64, ["rows", 8]), (f32, ["rows", 8]), (f32, ["rows"]), *[fresh] * 2, (f32, ["rows", 24])]

    def types(values: object) -> list[tuple[int, list[object]]]:
        tensors = [value.type.tensor_type for value in values]  # type: ignore[attr-defined]
        return [(each.elem_type, [axis.dim_param or axis.dim_value for axis in each.shape.dim]) for each in tensors]

    assert [value.name for value in model.graph.input] == portable_input_names(with_rotary=True)
    assert [value.name for value in model.graph.output] == output_names(1, with_logits=True)
    assert types(model.graph.input) == expected_inputs
    assert types(model.graph.output) == expected_outputs


@pytest.mark.usefixtures("few_cases")
def test_verify_compares_both_graphs(both: Bundle) -> None:
    if both.manifest.dtype == "bfloat16":
        with pytest.raises(BadInputError, match="bfloat16"):
            report_from_bundle(both)
        assert len(report_from_bundle(both, device="numpy").errors) == 6
        return
    report = report_from_bundle(both)
    names = [error.output for error in report.errors]
    assert report.ok
    assert report.cases == 3 * 4
    assert [*(f"cpu/{name}" for name in names[:6]), *(f"portable/{name}" for name in names[:6])] == names[6:]
    rows = [error for error in report.errors if "window_key_values" in error.output]
    assert all((error.difference.relative > 1e-5) == (both.manifest.dtype == "float16") for error in rows)


@pytest.mark.usefixtures("few_cases")
@pytest.mark.parametrize("both", ["float32"], indirect=True)
@pytest.mark.parametrize("constant", ["scale of attention", "epsilon of a norm"])
def test_verify_sees_a_wrong_portable_graph(both: Bundle, tmp_path: Path, constant: str) -> None:
    """Check that verify finds an error of the portable graph, while the standard graph passes."""
    copy = Path(shutil.copytree(both.path, tmp_path / "copy"))
    model = _graph(both)
    wanted = 8**-0.5 if constant == "scale of attention" else 1e-6
    found = [
        each
        for each in model.graph.initializer
        if not each.external_data
        and np.allclose(onnx.numpy_helper.to_array(each), np.float32(wanted), rtol=1e-6, atol=0)
    ]
    assert len(found) == 1
    wrong = onnx.numpy_helper.to_array(found[0]) * np.float32(1000 if constant.startswith("epsilon") else 1.01)
    found[0].CopyFrom(onnx.numpy_helper.from_array(wrong.astype(np.float32), found[0].name))
    onnx.save(model, copy / "portable.onnx")
    assert (copy / "portable.onnx").stat().st_size == (both.path / "portable.onnx").stat().st_size
    rewrite_digests(copy)
    wrong_outputs = [error.output for error in report_from_bundle(Bundle.open(copy)).errors if not error.ok]
    assert wrong_outputs
    assert all(name.startswith("portable/") for name in wrong_outputs)


@pytest.mark.parametrize("dialects", [(), ("portable", "standard"), ("portable", "portable")])
def test_other_sets_of_dialects_raise_value_error(tmp_path: Path, dialects) -> None:
    with pytest.raises(ValueError, match="received dialects"):
        bundle_from_checkpoint(tmp_path, tmp_path / "bundle", dialects=dialects)


def test_stages_of_a_portable_graph_are_rejected(tmp_path: Path) -> None:
    checkpoint = small_checkpoint(tmp_path / "checkpoint")
    with pytest.raises(BadInputError, match="--stages 2 with the portable dialect only"):
        bundle_from_checkpoint(checkpoint, tmp_path / "bundle", dialects=("portable",), stages=2)
    assert not (tmp_path / "bundle").exists()
