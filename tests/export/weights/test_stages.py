"""The graphs of stages, run one after another by ONNX Runtime, are bit-equal to the whole graph."""

from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from tests.export.checkpoints import HALF_OF_TESTS, small_checkpoint
from tests.export.graph_runs import Arrays, opened, random_inputs

from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.export.weights.plan import QuantizedKind
from lopa.export.weights.quantization import QuantizationChoice
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import MANIFEST_NAME, Stage
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.contract import TILE, output_names
from lopa.runtime.contract.model_part import HIDDEN, NEXT_HIDDEN
from lopa.runtime.errors import BadInputError


def _run(graph: Path, inputs: Arrays) -> Arrays:
    session = opened(graph)
    names = [output.name for output in session.get_outputs()]
    return dict(
        zip(names, session.run(None, {each.name: inputs[each.name] for each in session.get_inputs()}), strict=True)
    )


def _through_stages(bundle: Bundle, inputs: Arrays) -> Arrays:
    known = dict(inputs)
    for stage in bundle.manifest.stages:
        known |= _run(bundle.file(stage.graph), known)
        if NEXT_HIDDEN in known:
            known[HIDDEN] = known.pop(NEXT_HIDDEN)
    return known


def _check_same_bits(bundle: Bundle) -> None:
    for seed, sizes in enumerate([(1, 1, 1, TILE, 1), (1, 5, 40, 2 * TILE, 9), (2, 3, 11, TILE, 7)]):
        inputs = random_inputs(bundle.graph, *sizes, seed=seed)
        whole, staged = _run(bundle.graph, inputs), _through_stages(bundle, inputs)
        for name in output_names(bundle.manifest.dimensions.layers, with_logits=False):
            np.testing.assert_array_equal(staged[name], whole[name], err_msg=name)
        assert np.abs(whole["entropy"]).min() > 0


def test_two_stages(tiny_staged: Path) -> None:
    bundle = Bundle.open(tiny_staged)
    assert [(stage.first_layer, stage.end_layer) for stage in bundle.manifest.stages] == [(0, 3), (3, 5)]
    _check_same_bits(bundle)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_float16_stages_of_integers(kind: QuantizedKind, tmp_path: Path) -> None:
    """Check int8 in float16: between integer products ONNX Runtime rounds different values to float16."""
    checkpoint = small_checkpoint(tmp_path / "checkpoint", changes=HALF_OF_TESTS)
    choice = QuantizationChoice(kind)
    _check_same_bits(
        bundle_from_checkpoint(
            checkpoint, tmp_path / "bundle", dtype="float16", quantization=choice, stages=3, with_logits=True
        )
    )


def test_the_weights_are_in_one_file(tiny_staged: Path, tiny_bundle: Path) -> None:
    bundle, whole = Bundle.open(tiny_staged), Bundle.open(tiny_bundle)
    assert bundle.manifest.tensors == whole.manifest.tensors
    assert bundle.weights.read_bytes() == whole.weights.read_bytes()
    added = [
        record.path
        for record in bundle.manifest.files
        if record.path not in {each.path for each in whole.manifest.files}
    ]
    # The first stage computes no statistics, so its twin would be equal.
    assert added == ["model.stage-0-of-2.onnx", "model.stage-1-of-2.onnx", "model.stage-1-of-2.cpu.onnx"]
    assert {path.name for path in tiny_staged.iterdir()} == {path.name for path in tiny_bundle.iterdir()} | set(added)
    assert bundle.altered_files() == []
    used: list[str] = []
    for stage in bundle.manifest.stages:
        path = bundle.file(stage.graph)
        onnx.checker.check_model(path, full_check=True)
        graph = onnx.load(path, load_external_data=False).graph
        for initializer in graph.initializer:
            if initializer.data_location != onnx.TensorProto.EXTERNAL:
                assert np.prod(initializer.dims) <= 16
                continue
            record = bundle.manifest.tensors[initializer.name]
            entries = {entry.key: entry.value for entry in initializer.external_data}
            assert entries == {
                "location": "model.onnx.data", "offset": str(record.offset), "length": str(record.length)
            }  # fmt: skip
            used.append(initializer.name)
    assert sorted(used) == sorted(bundle.manifest.tensors), "each weight belongs to one stage"


@pytest.mark.parametrize("ends", [(3,), (3, 3), (3, 6), (4, 3), (1, 1, 5)])
def test_a_manifest_whose_stages_are_not_all_layers_is_rejected(
    tiny_staged: Path, tmp_path: Path, ends: tuple[int, ...]
) -> None:
    manifest = Bundle.open(tiny_staged).manifest
    graph = manifest.stages[0].graph
    stages = [Stage(graph=graph, first_layer=first, end_layer=end) for first, end in pairwise((0, *ends))]
    (tmp_path / MANIFEST_NAME).write_bytes(json_from_record(msgspec.structs.replace(manifest, stages=stages)))
    with pytest.raises(BadInputError, match="has stages of the layers") as caught:
        Bundle.open(tmp_path)
    assert "all 5 layers" in caught.value.expected
