"""Graphs with functions of domain lopa: bit-equal to graphs without them, and the body of the merge against float64."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from tests.export.checkpoints import small_checkpoint
from tests.export.graph_runs import opened, random_inputs
from tests.plugins.token_statistics_reference import token_statistics_reference

from lopa import tiny
from lopa.cli.main import main
from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.export.graph.plugin_functions import plugin_functions
from lopa.export.graph.plugin_passes import PluginsPass
from lopa.export.weights.quantization import QuantizationChoice
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import TILE
from lopa.runtime.decoder import Decoder

Array = np.ndarray
LAYERS = 5


def _assert_same_bits(one: Bundle, other: Bundle, sizes: tuple[int, ...] = (2, 3, 11, TILE, 5)) -> None:
    inputs = random_inputs(other.graph, *sizes, seed=sum(sizes))
    found, expected = (opened(bundle.graph).run(None, inputs) for bundle in (one, other))
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def _operators(bundle: Bundle, name: str | None = None) -> Counter[tuple[str, str]]:
    model = onnx.load(bundle.file(name or bundle.manifest.graph), load_external_data=False)
    return Counter((node.domain, node.op_type) for node in model.graph.node)


def test_functions_replace_their_nodes(tiny_plugins: Path, tiny_bundle: Path) -> None:
    bundle = Bundle.open(tiny_plugins)
    assert bundle.manifest.plugins == ["TokenStatistics"]
    assert "plugins" not in json.loads((tiny_bundle / "manifest.json").read_text())
    operators = _operators(bundle)
    assert (operators["", "Attention"], operators["lopa", "TokenStatistics"]) == (LAYERS, 1)
    assert not {"TopK", "Exp"} & {operator for domain, operator in operators if not domain}
    model = onnx.load(bundle.graph, load_external_data=False)
    assert {(opset.domain, opset.version) for opset in model.opset_import} == {("", 23), ("lopa", 1)}
    functions = {function.name: function for function in model.functions}
    assert sorted(functions) == ["LogitsMerge", "LogitsPartials", "TokenStatistics"]
    # TensorRT's parser looks for this attribute to use a plugin instead of the body.
    marked = functions["TokenStatistics"].node
    assert [node.op_type for node in marked] == ["LogitsPartials", "LogitsMerge"]
    assert all(node.attribute[0].name == "plugin_namespace" and node.attribute[0].s == b"lopa" for node in marked)
    onnx.checker.check_model(bundle.graph, full_check=True)


@pytest.mark.parametrize(
    "sizes", [(1, 1, 1, TILE, 1), (1, 5, 40, 2 * TILE, 9), (3, 2, 7, 3 * TILE, 1), (2, 2, 3, 5, 20)]
)
def test_the_same_bits_as_without_functions(tiny_plugins: Path, tiny_bundle: Path, sizes: tuple[int, ...]) -> None:
    _assert_same_bits(Bundle.open(tiny_plugins), Bundle.open(tiny_bundle), sizes)


def test_stages(tmp_path: Path) -> None:
    """Check that the last stage has the token statistics, and that the stages decode as the whole."""
    checkpoint = small_checkpoint(tmp_path / "checkpoint", changes={"num_hidden_layers": 2})
    fast = bundle_from_checkpoint(checkpoint, tmp_path / "staged", stages=2, plugins=True)
    assert fast.manifest.plugins == ["TokenStatistics"]
    assert [_operators(fast, stage.graph)["lopa", "TokenStatistics"] for stage in fast.manifest.stages] == [0, 1]
    ids = []
    for device in ("cpu+cpu", "cpu"):
        with Decoder.open(fast.path, [device], threads=1) as decoder:
            config = decoder.config(branches=3, max_new_tokens=32)
            ids.append(decoder.generate("Question: 2 + 3?", config).token_ids)
    assert ids[0] == ids[1]


@pytest.mark.parametrize("head", [False, True])
def test_float16_and_quantized_matrices(tmp_path: Path, head: bool) -> None:
    checkpoint = small_checkpoint(tmp_path / "checkpoint", changes={"num_hidden_layers": 1})
    plain, fast = (
        bundle_from_checkpoint(
            checkpoint,
            tmp_path / str(plugins),
            dtype="float16",
            quantization=QuantizationChoice("int8", head=head),
            plugins=plugins,
        )
        for plugins in (False, True)
    )
    assert fast.manifest.plugins == ["TokenStatistics"]
    _assert_same_bits(fast, plain)


def test_with_logits_and_a_portable_graph(tmp_path: Path) -> None:
    """Check that a graph with logits has token statistics too, and a portable graph no functions."""
    checkpoint = small_checkpoint(tmp_path / "checkpoint", changes={"num_hidden_layers": 1})
    plain = bundle_from_checkpoint(checkpoint, tmp_path / "plain", with_logits=True)
    both = bundle_from_checkpoint(
        checkpoint, tmp_path / "both", dialects=("standard", "portable"), with_logits=True, plugins=True
    )
    standard, portable = both.with_dialect("standard"), both.with_dialect("portable")
    assert standard.manifest.plugins == ["TokenStatistics"]
    assert _operators(standard)["lopa", "TokenStatistics"] == 1
    _assert_same_bits(standard, plain)
    assert portable.manifest.plugins == []
    assert {domain for domain, _ in _operators(portable)} == {""}


def test_the_portable_dialect_has_no_plugins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["onnx", str(tiny.CHECKPOINT), "-o", str(tmp_path / "bundle"), "--plugins", "--dialect", "portable"])
    assert ended.value.code == 2
    assert "plugins with the portable dialect only" in capsys.readouterr().err
    assert not (tmp_path / "bundle").exists()


def test_statistics_of_another_form_are_rejected() -> None:
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 23]>
        plain (float[9] x, int64[1] k) => (float[8] y, int64[8] topk_ids) { y, topk_ids = TopK (x, k) }"""
    )
    with pytest.raises(ir.passes.PreconditionError, match="topk_ids are not of logits divided by the temperature"):
        PluginsPass()(model)


def _model_of_function(name: str, inputs: dict[str, Array], outputs: int) -> bytes:
    """Return a model whose only node is the function `name`."""
    values = [
        onnx.helper.make_tensor_value_info(key, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), [None] * x.ndim)
        for key, x in inputs.items()
    ]
    names = [f"output{i}" for i in range(outputs)]
    node = onnx.helper.make_node(name, list(inputs), names, domain="lopa")
    graph = onnx.helper.make_graph([node], name, values, [onnx.ValueInfoProto(name=each) for each in names])
    opsets = [onnx.helper.make_opsetid("", 23), onnx.helper.make_opsetid("lopa", 1)]
    functions = [ir.serde.serialize_function(function) for function in plugin_functions()]
    model = onnx.helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)
    serialized: bytes = model.SerializeToString()
    return serialized


def _run_function(name: str, inputs: dict[str, Array], outputs: int) -> list[Array]:
    session = opened(_model_of_function(name, inputs, outputs))
    found: list[Array] = session.run(None, inputs)
    return found


def test_the_body_of_the_merge_accepts_several_splits() -> None:
    """Merge partial results of three parts of a vocabulary, computed by the body for one part."""
    logits = np.random.default_rng(4).standard_normal((2, 3, 4, 90)).astype(np.float32)
    logits[..., 70] = logits[..., 65] = logits[..., 3]  # equal logits in two parts, and twice in one
    temperature = np.array([1.0, 0.5], np.float32)
    parts = []
    for first in (0, 30, 60):
        inputs = {"l": logits[..., first : first + 30], "t": temperature}
        *sums, ids, values = _run_function("LogitsPartials", inputs, 5)
        assert [array.shape for array in sums] == [(2, 3, 4, 1)] * 3
        parts.append([*sums, ids + np.int32(first), values])
    partials = [np.concatenate(arrays, axis=3) for arrays in zip(*parts, strict=True)]
    ids, logprobs, entropy = _run_function("LogitsMerge", dict(zip("abcde", partials, strict=True)), 3)
    expected = token_statistics_reference(logits.reshape(-1, 90), np.repeat(temperature, 12))
    assert ids.dtype == np.int64
    np.testing.assert_array_equal(ids.reshape(-1, 8), expected[0])
    np.testing.assert_allclose(logprobs.reshape(-1, 8), expected[1], rtol=0, atol=2e-5)
    np.testing.assert_allclose(entropy.reshape(-1), expected[2], rtol=0, atol=2e-5)
