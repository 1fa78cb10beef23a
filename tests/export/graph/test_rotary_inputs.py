"""Graphs that take cosines and sines: their signature and their results, with and without."""

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from tests.export.checkpoints import small_checkpoint
from tests.runtime.random_windows import assert_same_statistics, random_batch
from tests.runtime.sequential import sequential

from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.export.graph.module import inverse_frequencies
from lopa.export.graph.rotary_inputs import with_rotary_inputs
from lopa.export.verify.report import report_from_bundle
from lopa.export.weights.plan import Dtype, QuantizedKind
from lopa.export.weights.quantization import QuantizationChoice
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import MANIFEST_NAME
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.contract.rotary import RotaryAngles
from lopa.runtime.sessions.session import open_session

pytestmark = pytest.mark.usefixtures("few_cases")


@pytest.fixture(scope="module", params=["float32", "float16"])
def both(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Bundle:
    """Return a small random checkpoint with both dialects and two stages, all graphs with rotary inputs."""
    folder = tmp_path_factory.mktemp("both")
    dtype: Dtype = request.param
    return bundle_from_checkpoint(
        small_checkpoint(folder / "checkpoint"),
        folder / "bundle",
        dtype=dtype,
        dialects=("standard", "portable"),
        stages=2,
        rotary_inputs=True,
    )


def _graphs(bundle: Bundle) -> dict[str, onnx.ModelProto]:
    return {path.name: onnx.load(path, load_external_data=False) for path in bundle.path.glob("*.onnx")}


def test_every_graph_takes_them(both: Bundle) -> None:
    graphs = _graphs(both)
    assert set(graphs) >= {"model.onnx", "model.cpu.onnx", "portable.onnx", "model.stage-1-of-2.onnx"}
    assert both.manifest.rotary_inputs == ["standard", "portable"]
    for name, model in graphs.items():
        behind = "sampled_rows" if name == "model.cuda.onnx" else "window_mask"
        assert [value.name for value in model.graph.input][1:4] == ["rotary_cos", "rotary_sin", behind], name
        assert not {"Cos", "Sin"} & {node.op_type for node in model.graph.node}
        assert "inverse_frequencies" not in {tensor.name for tensor in model.graph.initializer}
        onnx.checker.check_model(str(both.path / name), full_check="cpu" not in name)


@pytest.mark.parametrize(
    ("both", "device"), [("float32", "cpu+cpu"), ("float16", "cpu"), ("float16", "openvino:CPU")], indirect=["both"]
)
def test_verify_accepts_them(both: Bundle, device: str) -> None:
    if device.startswith("openvino"):
        pytest.importorskip("openvino")
    report = report_from_bundle(both, device=device)
    assert report.ok
    assert report.cases >= 4


@pytest.mark.parametrize(("size", "theta"), [(16, 1e4), (128, 5e5), (128, 1e6)])
def test_frequencies_are_those_of_the_graph(tiny_bundle: Path, size: int, theta: float) -> None:
    """Check all, up to one last bit: torch rounds few powers differently."""
    dimensions = msgspec.structs.replace(
        Bundle.open(tiny_bundle).manifest.dimensions, head_size=size, partial_rotary_size=None, rope_theta=theta
    )
    in_graph = inverse_frequencies(dimensions).numpy()
    found = RotaryAngles(size, theta).inverse_frequencies()
    np.testing.assert_array_max_ulp(found, in_graph, maxulp=1)
    assert (found != in_graph).mean() < 0.05


def test_defaults_are_portable_graphs(tmp_path: Path) -> None:
    checkpoint = small_checkpoint(tmp_path / "checkpoint", changes={"num_hidden_layers": 1})
    found: dict[str, Any] = {}
    for name, choice in (("default", None), ("none", False)):
        bundle = bundle_from_checkpoint(
            checkpoint, tmp_path / name, dialects=("standard", "portable"), rotary_inputs=choice
        )
        found[name] = {graph: model.graph.input[1].name for graph, model in _graphs(bundle).items()}
        assert b"rotary_inputs" in (bundle.path / MANIFEST_NAME).read_bytes() or choice is False
    old = dict.fromkeys(("model.onnx", "model.cpu.onnx", "model.cuda.onnx", "portable.onnx"), "position_ids")
    assert found == {"default": {**old, "portable.onnx": "rotary_cos"}, "none": old}


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_quantized_graphs_and_their_twins(kind: QuantizedKind, tmp_path: Path) -> None:
    checkpoint = small_checkpoint(tmp_path / "checkpoint", changes={"intermediate_size": 64})
    choice = QuantizationChoice(kind)
    bundle = bundle_from_checkpoint(checkpoint, tmp_path / "bundle", quantization=choice, rotary_inputs=True)
    report = report_from_bundle(bundle)
    assert report.ok
    assert {twin.form for twin in bundle.manifest.twins} >= {"packed", "mapped"}
    for model in _graphs(bundle).values():
        assert model.graph.input[1].name == "rotary_cos"


@pytest.mark.parametrize("source", ["tiny_bundle", "tiny_portable_positions"])
def test_random_windows_agree_with_positions(source: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Convert the graph of a finished bundle, as a build for an accelerator does, and compare at large positions."""
    old = Bundle.open(request.getfixturevalue(source))
    new = converted(old, tmp_path / "new")
    rng = np.random.default_rng(5)
    with closing(open_session(old, "cpu", threads=1)) as expected, closing(open_session(new, "cpu")) as found:
        for start, branches, width in ((0, 1, 30), (700, 3, 7), (30_000, 2, 16)):
            batch = random_batch(rng, (start, start + 1), branches, width, 5, starts=(start, start + 5))
            answers = [sequential(session).forward(batch) for session in (found, expected)]
            assert_same_statistics(*answers, tolerance=1e-4)
            for session in (found, expected):
                sequential(session).commit(start, branches - 1, width)
            answers = [sequential(session).forward(batch) for session in (found, expected)]
            assert_same_statistics(*answers, tolerance=1e-4)


def test_a_converted_graph_stays_as_it_is(tiny_rotary: Path, tiny_bundle: Path) -> None:
    once = with_rotary_inputs(ir.load(Bundle.open(tiny_bundle).graph))
    text = ir.to_proto(once).SerializeToString(deterministic=True)
    assert ir.to_proto(with_rotary_inputs(once)).SerializeToString(deterministic=True) == text
    exported = ir.load(Bundle.open(tiny_rotary).graph)
    assert [node.op_type for node in exported.graph] == [node.op_type for node in once.graph]


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (lambda graph: graph.inputs.pop(1), "no input position_ids"),
        (lambda graph: _replace_operator(graph, "Sin", "Tanh"), "no sines"),
        (lambda graph: _replace_operator(graph, "Mul_3", "Add"), "no product"),
        (lambda graph: _computes_from(graph, "input_ids"), "do not come from position_ids"),
    ],
)
def test_other_graphs_are_rejected(tiny_bundle: Path, alter: Callable[[ir.Graph], object], message: str) -> None:
    model = ir.load(Bundle.open(tiny_bundle).graph)
    alter(model.graph)
    with pytest.raises(ir.passes.PassError) as caught:
        with_rotary_inputs(model)
    assert message in f"{caught.value} {caught.value.__cause__}"


def converted(bundle: Bundle, target: Path) -> Bundle:
    """Return a copy of a bundle with one graph, which takes cosines and sines."""
    shutil.copytree(bundle.path, target)
    model = with_rotary_inputs(ir.load(bundle.graph))
    (target / bundle.manifest.graph).write_bytes(ir.to_proto(model).SerializeToString())
    manifest = bundle.with_twins().manifest
    size = (target / manifest.graph).stat().st_size
    files = [
        record if record.path != manifest.graph else msgspec.structs.replace(record, size=size)
        for record in manifest.files
    ]
    changed = msgspec.structs.replace(manifest, files=files, rotary_inputs=[manifest.dialect])
    (target / MANIFEST_NAME).write_bytes(json_from_record(changed))
    return Bundle.open(target)


def _replace_operator(graph: ir.Graph, name: str, operator: str) -> None:
    node = next(node for node in graph if node.name == name)
    node.op_type = operator


def _computes_from(graph: ir.Graph, name: str) -> None:
    node = next(node for node in graph if node.op_type == "Reshape" and node.inputs[0] is graph.inputs[1])
    node.replace_input_with(0, next(value for value in graph.inputs if value.name == name))
