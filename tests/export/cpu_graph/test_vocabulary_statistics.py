"""Statistics row by row: the standard graph's best tokens and float64's numbers, for all kinds of bundles."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from onnx_ir.passes import common
from tests.canvas_checkpoints import FOLDER
from tests.export.graph_runs import opened, random_inputs

from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.export.cpu_graph import vocabulary_statistics
from lopa.export.cpu_graph.vocabulary_statistics import (
    MIN_VOCABULARY,
    VocabularyStatisticsPass,
    group_of_vocabulary,
)
from lopa.export.verify.report import report_from_bundle
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import ENTROPY, LOGITS_INDEX, TEMPERATURE, TOP_K, TOPK_IDS, TOPK_LOGPROBS
from lopa.runtime.contract.row_statistics import RowStatistics, check_statistics
from lopa.runtime.errors import NonFiniteAnswerError

Array = npt.NDArray[Any]

LARGE, PRIME = 80_000, 80_021
"""Vocabularies with groups of 64 ids, and of one id because no size divides it."""
SUMMED = {LARGE: 4e-6, MIN_VOCABULARY: 4e-6, PRIME: 3e-5}
"""Tolerance against float64: two units of the largest logits. One sum over all ids loses more."""
NAMES = (TOPK_IDS, TOPK_LOGPROBS, ENTROPY)


@pytest.fixture(scope="module")
def head(tiny_bundle: Path) -> bytes:
    """Return the end of an exported graph with logits as its input, for any number of ids."""
    model = ir.load(tiny_bundle / "model.onnx")
    outputs = {value.name: value for value in model.graph.outputs}
    best = outputs[TOPK_IDS].producer()
    division = best.inputs[0].producer()  # type: ignore[union-attr]
    known = {value.name: value for value in model.graph.inputs}
    axes = ir.Shape(["requests", "branches", "rows", "ids"])
    logits = ir.Value(name="logits", shape=axes, type=ir.TensorType(ir.DataType.FLOAT))
    division.replace_input_with(0, logits)  # type: ignore[union-attr]
    del model.graph.outputs[len(NAMES) :]
    common.RemoveUnusedNodesPass()(model)
    model.graph.inputs[:] = [logits, known[LOGITS_INDEX], known[TEMPERATURE]]
    return bytes(ir.to_proto(model).SerializeToString())


@pytest.fixture
def any_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the pass accept small vocabularies."""
    monkeypatch.setattr(vocabulary_statistics, "MIN_VOCABULARY", 1)


def _answers(graph: bytes | Path, inputs: Mapping[str, Array]) -> list[Array]:
    """Return the statistics."""
    return list(opened(graph).run(list(NAMES), dict(inputs)))


def _by_row(head: bytes, vocabulary: int) -> bytes:
    model = ir.from_proto(onnx.load_from_string(head))
    assert VocabularyStatisticsPass(vocabulary)(model).modified
    operators = {node.op_type for node in model.graph}
    assert "Scan" in operators
    assert not operators & {"TopK", "Exp"}
    return bytes(ir.to_proto(model).SerializeToString())


def _inputs(logits: Array, temperature: Array) -> dict[str, Array]:
    index = np.zeros(logits.shape[:3], np.int64)
    return {"logits": logits, LOGITS_INDEX: index, TEMPERATURE: temperature.astype(np.float32)}


def _in_float64(logits: Array, temperature: Array) -> tuple[Array, Array, Array]:
    """Return the contract's statistics in float64, with equal candidates by lower id."""
    z = logits.astype(np.float64) / temperature.reshape(-1, 1, 1, 1)
    ids = np.argsort(-z, axis=-1, kind="stable")[..., :TOP_K]
    above = z - z.max(-1, keepdims=True)
    logprobs = above - np.log(np.exp(above).sum(-1, keepdims=True))
    return ids, np.take_along_axis(logprobs, ids, -1), -(np.exp(logprobs) * logprobs).sum(-1)


@pytest.mark.parametrize("vocabulary", [LARGE, PRIME, MIN_VOCABULARY])
def test_random_logits_of_several_requests(head: bytes, vocabulary: int) -> None:
    rng = np.random.default_rng(vocabulary)
    logits = rng.normal(0, 3, (2, 3, 2, vocabulary)).astype(np.float32)
    temperature = np.array([1.0, 0.7])
    inputs = _inputs(logits, temperature)
    ids, logprobs, entropy = _answers(_by_row(head, vocabulary), inputs)
    expected = _in_float64(logits, temperature)
    np.testing.assert_array_equal(ids, expected[0])
    np.testing.assert_allclose(logprobs, expected[1], rtol=0, atol=SUMMED[vocabulary])
    np.testing.assert_allclose(entropy, expected[2], rtol=0, atol=SUMMED[vocabulary])
    standard = _answers(head, inputs)
    np.testing.assert_array_equal(ids, standard[0])
    np.testing.assert_allclose(logprobs, standard[1], rtol=0, atol=3e-5)  # its sums lose more bits
    np.testing.assert_allclose(entropy, standard[2], rtol=0, atol=3e-5)


@pytest.mark.parametrize("vocabulary", [LARGE, PRIME])
def test_equal_logits_are_ordered_by_lower_id(head: bytes, vocabulary: int) -> None:
    """Check logits with few distinct values, all equal, and equal maxima whose groups are not in the order of ids."""
    rng = np.random.default_rng(5)
    logits = rng.integers(-3, 4, (1, 1, 5, vocabulary)).astype(np.float32)
    logits[0, 0, 1] = 2.5
    logits[0, 0, 2, [70, 79_990, 20_000, 20_001]] = [9, 9, 11, 9]
    logits[0, 0, 3] = np.arange(vocabulary) // 5
    logits[0, 0, 4, 64:] = -7
    temperature = np.array([0.5])
    inputs = _inputs(logits, temperature)
    found = _answers(_by_row(head, vocabulary), inputs)
    np.testing.assert_array_equal(found[0], _in_float64(logits, temperature)[0])
    # One sum over all ids loses as much as the standard graph's.
    expected = _answers(head, inputs) if vocabulary == PRIME else _in_float64(logits, temperature)
    np.testing.assert_allclose(found[1], expected[1], rtol=0, atol=4e-6)
    np.testing.assert_allclose(found[2], expected[2], rtol=0, atol=4e-6)


@pytest.mark.parametrize("vocabulary", [LARGE, PRIME])
@pytest.mark.parametrize("broken", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 777, slice(None)])
def test_a_row_that_is_not_a_distribution_is_visible(
    head: bytes, vocabulary: int, broken: float, place: int | slice
) -> None:
    logits = np.random.default_rng(6).normal(0, 3, (1, 2, 1, vocabulary)).astype(np.float32)
    logits[0, 1, 0, place] = broken
    ids, logprobs, entropy = _answers(_by_row(head, vocabulary), _inputs(logits, np.array([1.0])))
    check_statistics(RowStatistics(ids[0, 0], logprobs[0, 0], entropy[0, 0]), vocabulary, device="cpu", step=0)
    with pytest.raises(NonFiniteAnswerError):
        check_statistics(RowStatistics(ids[0, 1], logprobs[0, 1], entropy[0, 1]), vocabulary, device="cpu", step=0)


def test_groups_divide_the_vocabulary() -> None:
    for vocabulary, group in ((151_936, 64), (126_464, 64), (50_257, 29), (PRIME, 1), (2 * PRIME, 1)):
        assert group_of_vocabulary(vocabulary) == group


def test_small_vocabularies_and_graphs_without_statistics_are_unchanged(head: bytes) -> None:
    model = ir.from_proto(onnx.load_from_string(head))
    assert not VocabularyStatisticsPass(MIN_VOCABULARY - 1)(model).modified
    assert model.graph.outputs[0].producer().op_type == "TopK"  # type: ignore[union-attr]
    del model.graph.outputs[:]
    assert not VocabularyStatisticsPass(LARGE)(model).modified


@pytest.fixture(params=["tiny_bundle", "tiny_bundle_logits", "tiny_half", "tiny_staged"])
def bundle(request: pytest.FixtureRequest) -> Path:
    """Return bundles of several types, with logits, and with a stage as the last part."""
    return Path(request.getfixturevalue(request.param))


@pytest.mark.usefixtures("any_vocabulary")
def test_complete_bundles(bundle: Path, tmp_path: Path) -> None:
    _assert_same_answers(bundle, tmp_path, tolerance=5e-6)


@pytest.mark.usefixtures("any_vocabulary")
def test_quantized_bundles(tiny_quantized: Path, tmp_path: Path) -> None:
    """Check that int8 row scales become part of the factor, so that no product over the vocabulary applies them."""
    graph = _assert_same_answers(tiny_quantized, tmp_path, tolerance=5e-6)
    int8 = Bundle.open(tiny_quantized).manifest.quantization.kind == "int8"  # type: ignore[union-attr]
    left = {node.name for node in onnx.load(graph, load_external_data=False).graph.node}
    assert "head/MatMul" in left
    assert "head/MatMul/scaled" not in left
    assert ("final_norm/RMSNormalization/rows/Mul" in left) is int8


def _assert_same_answers(path: Path, folder: Path, tolerance: float) -> Path:
    """Compare each last part of the bundle with and without the pass. Return the last graph with the pass."""
    manifest = Bundle.open(path).manifest
    copy = shutil.copytree(path, folder / "copy")
    parts = [manifest.graph, *(stage.graph for stage in manifest.stages[-1:])]
    for name in parts:
        model = ir.load(copy / name)
        assert VocabularyStatisticsPass(manifest.dimensions.vocab_size)(model).modified
        ir.save(model, copy / "by-row.onnx")
        inputs = random_inputs(copy / name, 2, 3, 5, 64, 4, seed=8)
        found, expected = _answers(copy / "by-row.onnx", inputs), _answers(copy / name, inputs)
        np.testing.assert_array_equal(found[0], expected[0])
        for ours, theirs in zip(found[1:], expected[1:], strict=True):
            assert ours.shape == theirs.shape
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance)
    return copy / "by-row.onnx"


@pytest.mark.usefixtures("any_vocabulary")
def test_canvases_have_statistics_by_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary_statistics, "_GROUPS", range(16, 33))  # 384 ids have at least 8 groups
    bundle = bundle_from_checkpoint(FOLDER / "canvas16", tmp_path / "bundle")
    graph = bundle.twin("cpu", "mapped")
    assert graph is not None
    assert "Scan" in {node.op_type for node in onnx.load(graph, load_external_data=False).graph.node}
    assert report_from_bundle(bundle).ok
