"""Twins for CUDA in ONNX Runtime on the CPU, with ONNX functions for their operators, against the standard graph."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from tests.export.checkpoints import ONE_LAYER, small_checkpoint
from tests.export.cuda_graph.cuda_functions import with_functions
from tests.export.graph_runs import opened, random_inputs

from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.export.cuda_graph.twin import twin_for_cuda
from lopa.export.weights.quantization import QuantizationChoice
from lopa.runtime import contract
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.graph_signature import check_signature
from lopa.runtime.bundle.manifest import GraphTwin
from lopa.runtime.bundle.manifest_checks import manifest_from_json
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.contract.model_part import whole_model
from lopa.runtime.contract.rotary import ROTARY_INPUTS
from lopa.runtime.errors import BadInputError

Arrays = dict[str, np.ndarray]
SIZES = [(1, 1, 1, 64, 1), (1, 5, 24, 64, 9), (3, 2, 7, 128, 1), (2, 3, 11, 64, 20)]
"""One row, several branches, several requests, more sampled positions than rows."""


def twin_of(bundle: Bundle) -> GraphTwin:
    (twin,) = (each for each in bundle.manifest.twins if each.provider == "cuda")
    return twin


def opened_twin(bundle: Bundle) -> ort.InferenceSession:
    """Open the twin with a function for each of lopa.cuda's operators."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(bundle.path))
    model = with_functions(bundle.path / twin_of(bundle).graph, bundle.manifest.dimensions.partial_rotary_size or 0)
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def fused_arrays(bundle: Bundle) -> Arrays:
    """Return the twin's fused inputs, read from the weights file."""
    arrays = {}
    for fused in twin_of(bundle).fused:
        records = [bundle.manifest.tensors[name] for name in fused.parts]
        dtypes = [
            each.dtype if each.dtype.startswith("float") and "8" not in each.dtype else "uint8" for each in records
        ]
        parts = [
            np.fromfile(bundle.weights, dtype, each.length // np.dtype(dtype).itemsize, offset=each.offset)
            for dtype, each in zip(dtypes, records, strict=True)
        ]
        shapes = [[*each.shape[:-1], -1] for each in records]
        arrays[fused.name] = np.concatenate([*map(np.reshape, parts, shapes)], fused.axis)
    return arrays


def packed_inputs(inputs: Arrays, layers: int) -> Arrays:
    """Return the inputs of the twin, with a dense mask in place of the lists (cuda_functions.py)."""
    requests, branches, width = inputs["input_ids"].shape
    windows, prefix = requests * branches, inputs["prefix_mask"].shape[1]
    sampled = inputs["logits_index"].reshape(windows, -1) + width * np.arange(windows)[:, None]
    visible = np.zeros((requests, branches, width, requests * prefix + windows * width), np.int32)
    for request, branch in np.ndindex(requests, branches):
        start = requests * prefix + (request * branches + branch) * width
        visible[request, branch, :, request * prefix :][:, :prefix] = inputs["prefix_mask"][request]
        visible[request, branch, :, start : start + width] = inputs["window_mask"][request, branch]
    past = np.stack([inputs[name] for name in contract.past_names(layers)])  # [2 L, R, heads, P, size]
    tiles = past.reshape(*past.shape[:3], -1, 64, past.shape[4])
    packed = {name: inputs[name].reshape(-1) for name in ("input_ids", "position_ids") if name in inputs}
    packed |= {name: inputs[name].reshape(windows * width, -1) for name in ROTARY_INPUTS if name in inputs}
    return packed | {
        "sampled_rows": sampled.ravel(),
        "temperature": inputs["temperature"].repeat(sampled.size // requests),
        "cache": tiles.transpose(1, 3, 0, 2, 4, 5).ravel(),
        "attention_work": visible.ravel(),
        "attention_scratch": np.zeros(1, np.float32),
    }


def padded(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return an output of the twin in the shape of the graph's."""
    if len(shape) < 5:
        return array.reshape(shape)
    requests, branches, heads, width, size = shape
    return array.reshape(requests, branches, width, heads, size).transpose(0, 1, 3, 2, 4)


def assert_agrees(bundle: Bundle, tolerance: float, share: float = 1.0) -> None:
    """Compare both graphs on random inputs. `share` of the values differ by at most `tolerance` times the largest."""
    bundle = bundle.with_dialect("standard")
    plain = opened(bundle.graph, is_fp8=bundle.manifest.is_fp8)
    twin, fused = opened_twin(bundle), fused_arrays(bundle)
    names = [value.name for value in plain.get_outputs()]
    for sizes in SIZES:
        inputs = random_inputs(bundle.graph, *sizes, seed=sum(sizes))
        if "rotary_cos" in inputs:
            inputs |= {"rotary_cos": np.cos(inputs["rotary_sin"]), "rotary_sin": np.sin(inputs["rotary_sin"])}
        packed = packed_inputs(inputs, bundle.manifest.dimensions.layers)
        expected, results = plain.run(names, inputs), twin.run(names, {**packed, **fused})
        for name, right, result in zip(names, expected, results, strict=True):
            ours = padded(result, right.shape)
            assert ours.dtype == right.dtype
            if name == contract.TOPK_IDS:
                least = 0.8 if bundle.manifest.is_fp8 else 0.95
                assert (ours[..., 0] == right[..., 0]).mean() > least  # except near-ties
            else:
                allowed = tolerance * max(1.0, float(np.abs(right.astype(np.float32)).max()))
                difference = np.abs(ours.astype(np.float32) - right)
                assert (difference <= allowed).mean() >= share, f"{name} {sizes}: {difference.max()} > {allowed}"


def assert_each_weight_once(bundle: Bundle) -> None:
    """Check that a tensor is an initializer of the twin, or a part of one of its inputs."""
    twin = twin_of(bundle)
    stored = {name for name, value in ir.load(bundle.path / twin.graph).graph.initializers.items() if is_stored(value)}
    parts = [name for fused in twin.fused for name in fused.parts]
    assert stored.isdisjoint(parts)
    assert stored | set(parts) == bundle.manifest.tensors.keys()
    assert len(parts) == len(set(parts))


def is_stored(value: ir.Value) -> bool:
    return isinstance(value.const_value, ir.ExternalTensor)


def operators(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path, load_external_data=False).graph.node)


@pytest.mark.parametrize("family", ["llada", "sdar", "fast_dllm_v2", "llada2", "sdar_moe", "llada_moe"])
def test_families(family_bundle: Callable[..., Path], family: str) -> None:
    bundle = Bundle.open(family_bundle(family))
    assert_agrees(bundle, 3e-5)
    assert_each_weight_once(bundle)


@pytest.mark.parametrize("name", ["wedlm", "stable_diffcoder"])
def test_families_of_one_layer(request: pytest.FixtureRequest, name: str) -> None:
    assert_agrees(request.getfixturevalue(name), 3e-5)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("sdar_moe", {"dtype": "float16"}),
        ("sdar_moe", {"quantize": "int4"}),
        ("llada2", {"quantize": "int8"}),
    ],
)
def test_types_of_families(family_bundle: Callable[..., Path], family: str, options: dict[str, str]) -> None:
    bundle = Bundle.open(family_bundle(family, **options))
    assert_agrees(bundle, 0.02, share=0.95)  # some rows have another expert at a near-tie
    assert_each_weight_once(bundle)


@pytest.mark.parametrize(
    ("name", "tolerance"),
    [("tiny_bundle", 3e-5), ("tiny_bundle_logits", 3e-5), ("tiny_rotary", 3e-5), ("tiny_half", 0.01)],
)
def test_outputs_and_types(request: pytest.FixtureRequest, name: str, tolerance: float) -> None:
    bundle = Bundle.open(request.getfixturevalue(name))
    assert_agrees(bundle, tolerance)
    assert_each_weight_once(bundle)


@pytest.mark.parametrize("kind", ["int4", "int8", "fp8"])
def test_quantized(export_tiny: Callable[..., Path], kind: str) -> None:
    """int4 products keep their rows. Rounding to 8 bits makes a step of a difference in the last place."""
    bundle = Bundle.open(export_tiny(quantize=kind, with_logits=False))
    tolerance, share = {"int4": (3e-5, 1.0), "int8": (0.02, 0.95), "fp8": (0.1, 0.8)}[kind]
    assert_agrees(bundle, tolerance, share)
    assert_each_weight_once(bundle)
    found = operators(bundle.path / twin_of(bundle).graph)
    layers, head = bundle.manifest.dimensions.layers, int(kind != "fp8")
    if kind == "int4":
        assert found["Int4Product"] == 4 * layers + 1
    else:  # besides the products, only attention's and the head's rows take a launch
        assert found["RoundedProductFloat"] == 4 * layers + head
        assert (found["RoundRows"], found["ScaleRows"]) == (layers + head, head)
        assert found["RoundedSkipRmsNorm"] + found["RoundedRmsNorm"] == 2 * layers
        assert (found["RoundedSwiGlu"], found["SkipRmsNorm"]) == (layers, 1)
    assert (found["MatMul"], found["DequantizeLinear"]) == (1 - head, 0)


def test_a_product_of_unquantized_matrices_alone_is_fused(tmp_path: Path) -> None:
    checkpoint = small_checkpoint(tmp_path / "checkpoint", changes=ONE_LAYER)
    excluded = QuantizationChoice("int8", exclude=("*.attention.*", "*.mlp.up.*"))
    bundle = bundle_from_checkpoint(checkpoint, tmp_path / "bundle", quantization=excluded)
    assert_agrees(bundle, 0.01)
    assert_each_weight_once(bundle)
    names = [fused.name for fused in twin_of(bundle).fused]
    alone = [f"{name}.weight_bytes" for name in ("layers.0.mlp.gate", "layers.0.mlp.down", "head")]
    assert names == ["layers.0.attention.qkv.bias", "layers.0.attention.qkv.weight", *alone]
    found = operators(bundle.path / twin_of(bundle).graph)  # the norm's rows are rounded for the gate alone
    assert (found["RoundRows"], found["ScaleRows"], found["RoundedSwiGlu"]) == (2, 2, 1)


def test_quantized_half(export_tiny: Callable[..., Path]) -> None:
    """Products of rounded rows have the type that is behind their scales: logits stay float32."""
    int4, int8 = (
        Bundle.open(export_tiny(quantize=kind, dtype="float16", with_logits=False)) for kind in ("int4", "int8")
    )
    assert_agrees(int4, 0.03, share=0.95)
    opened_twin(int8)
    found = operators(int8.path / twin_of(int8).graph)
    assert (found["RoundedProductFloat"], found["RoundedProductFloat16"] % 4, found["MatMul"]) == (1, 0, 0)


def test_few_operators(tiny_bfloat16: Path, tiny_half: Path) -> None:
    """28 layers take 292 launches in bfloat16. Attention and statistics take two each, views none."""
    bundle, half = Bundle.open(tiny_bfloat16), Bundle.open(tiny_half)
    found = operators(bundle.path / twin_of(bundle).graph)
    views = found["Constant"] + found["Reshape"] + found["Unsqueeze"]
    launches = found.total() - views + found["BranchAttention"] + found["TokenStatistics"]
    assert launches + 10 * (28 - bundle.manifest.dimensions.layers) == 292
    of_half = operators(half.path / twin_of(half).graph)
    assert of_half - Counter({"Cast": 1}) == found  # that of the logits
    assert twin_of(bundle).fused == twin_of(half).fused


def test_one_twin_of_the_whole_model(tiny_staged: Path, tiny_plugins: Path, tiny_bundle: Path) -> None:
    staged, plugins, plain = (Bundle.open(path) for path in (tiny_staged, tiny_plugins, tiny_bundle))
    assert twin_of(staged).source == "model.onnx"
    twins = [(each.path / twin_of(each).graph).read_bytes() for each in (staged, plugins, plain)]
    assert len(set(twins)) == 1
    assert plain.twin("cuda") == plain.path / "model.cuda.onnx"
    assert twin_of(plain).source_sha256 == plain.digests["model.onnx"]


def _scaled(graph: ir.Graph) -> None:
    _first(graph, "Attention").attributes["scale"] = ir.AttrFloat32("scale", 1.0)


def _causal(graph: ir.Graph) -> None:
    _first(graph, "Attention").attributes["is_causal"] = ir.AttrInt64("is_causal", 1)


def _other_mask(graph: ir.Graph) -> None:
    _invert(_first(graph, "Attention"), 3)


def _other_window_mask(graph: ir.Graph) -> None:
    _invert(next(node for node in graph if "window_mask" in [value and value.name for value in node.inputs]), 1)


def _other_prefix_mask(graph: ir.Graph) -> None:
    _invert(next(node for node in graph if "prefix_mask" in [value and value.name for value in node.inputs]), 0)


def _invert(node: ir.Node, index: int) -> None:
    inverted = ir.node("Not", [node.inputs[index]], name="inverted")
    node.prepend(inverted)
    node.replace_input_with(index, inverted.outputs[0])


def _interleaved(graph: ir.Graph) -> None:
    _first(graph, "RotaryEmbedding").attributes["interleaved"] = ir.AttrInt64("interleaved", 1)


def _swapped_angles(graph: ir.Graph) -> None:
    rotary = _first(graph, "RotaryEmbedding")
    cosine, sine = rotary.inputs[1:]
    rotary.replace_input_with(1, sine)
    rotary.replace_input_with(2, cosine)


def _other_heads(graph: ir.Graph) -> None:
    node = next(node for node in graph if node.op_type == "Transpose")
    node.attributes["perm"] = ir.AttrInt64s("perm", [0, 2, 3, 1])


def _norm_of_another_axis(graph: ir.Graph) -> None:
    _first(graph, "RMSNormalization").attributes["axis"] = ir.AttrInt64("axis", 1)


def _other_statistics(graph: ir.Graph) -> None:
    division = next(node for node in graph if node.op_type == "Div")
    product = ir.node("Mul", division.inputs, name="product")
    division.prepend(product)
    division.outputs[0].replace_all_uses_with(product.outputs[0])


def _other_layers(values: Sequence[ir.Value]) -> None:
    """Swap the keys of two layers."""
    first, second = [value for value in values if (value.name or "").endswith(".key")][:2]
    first.name, second.name = second.name, first.name


def _first(graph: ir.Graph, operator: str) -> ir.Node:
    return next(node for node in graph if node.op_type == operator)


@pytest.mark.parametrize(
    "change",
    [
        *(_scaled, _causal, _other_mask, _other_window_mask, _other_prefix_mask, _interleaved, _swapped_angles),
        *(_other_heads, _norm_of_another_axis, _other_statistics),
        *(lambda graph: _other_layers(graph.inputs), lambda graph: _other_layers(graph.outputs)),
    ],
)
def test_a_graph_of_another_form_has_no_twin(tiny_bundle: Path, change: Callable[[ir.Graph], None]) -> None:
    bundle = Bundle.open(tiny_bundle)
    model = ir.load(bundle.graph)
    assert twin_for_cuda(model, bundle.manifest.dimensions) is not None
    change(model.graph)
    assert twin_for_cuda(model, bundle.manifest.dimensions) is None


@pytest.mark.parametrize(
    ("old", "new"), [("[0]", "[1]"), ("[16]", "[18]"), ("[9223372036854775807]", "[31]"), ("[3]", "[2]")]
)
def test_channels_of_another_form_have_no_twin(family_bundle: Callable[..., Path], old: str, new: str) -> None:
    """Rotated channels are the first ones, and the others follow."""
    bundle = Bundle.open(family_bundle("llada2")).with_dialect("standard")
    model = ir.load(bundle.graph)
    slices = [node for node in model.graph if node.op_type == "Slice" and "attention" in (node.name or "")][:2]
    values = {value for node in slices for value in node.inputs[1:4] if value is not None}
    changed = [value for value in values if str(value.const_value.numpy().tolist()) == old]  # type: ignore[union-attr]
    assert changed
    for value in changed:
        value.const_value = ir.tensor(np.array(json.loads(new)), name=value.name)
    assert twin_for_cuda(model, bundle.manifest.dimensions) is None


def test_inputs_are_checked_against_the_manifest(tiny_bundle: Path) -> None:
    bundle = Bundle.open(tiny_bundle)
    manifest, twin = bundle.manifest, twin_of(bundle)
    part, graph, session = whole_model(manifest.dimensions.layers), bundle.path / twin.graph, opened_twin(bundle)
    found = (session.get_inputs(), session.get_outputs())
    check_signature(graph, manifest, part, *found, twin)
    bias, *others = twin.fused
    short = msgspec.structs.replace(bias, parts=bias.parts[:2])
    for wrong, message in (
        (None, "attention_scratch"),
        (msgspec.structs.replace(twin, provider="cpu"), "attention_scratch"),
        (msgspec.structs.replace(twin, fused=others), "layers.0.attention.qkv.bias"),
        (msgspec.structs.replace(twin, fused=[short, *others]), r"qkv.bias tensor\(float\) \[320\]"),
    ):
        with pytest.raises(BadInputError, match=message):
            check_signature(graph, manifest, part, *found, wrong)


NAMES = [f"layers.0.attention.{part}.weight" for part in ("query", "key", "value")]
WRONG_FUSED: list[dict[str, Any]] = [
    {"name": "head.weight"},
    {"name": "layers.0.attention.qkv.bias"},
    {"axis": 0},
    {"axis": 2},
    {"parts": NAMES[:1]},
    {"parts": [*NAMES, NAMES[0]]},
    {"parts": [NAMES[0], NAMES[1], NAMES[1]]},
    {"parts": [NAMES[0], NAMES[1], "layers.0.mlp.gate.weight"]},
    {"parts": [NAMES[0], NAMES[1], "layers.0.attention.value.bias"]},
    {"parts": [NAMES[0], NAMES[1], "layers.0.mlp.down.weight"]},
    {"parts": [NAMES[0], NAMES[1], "no.weight"]},
    {"parts": [NAMES[0], NAMES[2], NAMES[1]]},
    {"name": "weight"},
    {"more": 1},
]


WRONG_BYTES: list[dict[str, Any]] = [
    {"name": "layers.0.attention.output.weight"},
    {"name": "layers.0.attention.key.weight_bytes"},
    {"parts": ["layers.0.attention.output.weight"] * 2},
    {"axis": 2},
    {"parts": ["no.weight"], "name": "no.weight_bytes"},
]


@pytest.mark.parametrize("kind", ["int4", "fp8"])
def test_bytes_that_contradict_the_manifest_are_rejected(export_tiny: Callable[..., Path], kind: str) -> None:
    content = json.loads(json_from_record(Bundle.open(export_tiny(quantize=kind, with_logits=False)).manifest))
    fused = next(each["fused"] for each in content["twins"] if each["provider"] == "cuda")
    place, alone = next((n, each) for n, each in enumerate(fused) if each["name"].endswith("output.weight_bytes"))
    assert alone["axis"] == int(kind == "int4")
    for change in [*WRONG_BYTES, {"axis": 1 - alone["axis"]}]:
        fused[place] = alone | change
        with pytest.raises(BadInputError, match=r"fused"):
            manifest_from_json(json.dumps(content).encode(), source="manifest.json")


@pytest.mark.parametrize("change", WRONG_FUSED, ids=str)
def test_fused_tensors_that_contradict_the_manifest_are_rejected(tiny_bundle: Path, change: dict[str, Any]) -> None:
    content = json.loads(json_from_record(Bundle.open(tiny_bundle).manifest))
    twin = next(each for each in content["twins"] if each["provider"] == "cuda")
    twin["fused"][1] |= change
    with pytest.raises(BadInputError, match=r"fused"):
        manifest_from_json(json.dumps(content).encode(), source="manifest.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": "model.stage-0-of-2.onnx"}, "1 twins of 'model.stage-0-of-2.onnx' for cuda"),
        ({"form": "mapped"}, "1 twins of 'model.onnx' for cuda in the form mapped"),
        ({"provider": "cpu", "source": "model.stage-0-of-2.onnx"}, "fused tensors in a twin for cpu"),
    ],
)
def test_twins_that_contradict_the_manifest_are_rejected(
    tiny_staged: Path, change: dict[str, str], message: str
) -> None:
    content = json.loads(json_from_record(Bundle.open(tiny_staged).manifest))
    content["twins"] = [each | change for each in content["twins"] if each["provider"] == "cuda"]
    with pytest.raises(BadInputError, match=message):
        manifest_from_json(json.dumps(content).encode(), source="manifest.json")
