"""Validation of untrusted manifests: number ranges and contradicting fields."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tools.checkpoint.likeness import LIKENESSES

from lopa.export.families import FAMILIES
from lopa.runtime.bundle import manifest
from lopa.runtime.bundle.manifest import MANIFEST_NAME, PREDICTION_SHIFTS, Manifest
from lopa.runtime.bundle.manifest_checks import manifest_from_json
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.errors import BadInputError

HUGE = [2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**30, -(2**31), -1]


@pytest.fixture
def content(tiny_bundle: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tiny_bundle / MANIFEST_NAME).read_bytes())
    return found


def read(content: dict[str, Any]) -> Manifest:
    return manifest_from_json(json.dumps(content).encode(), source="manifest.json")


def with_value(content: dict[str, Any], value: object, *path: str | int) -> dict[str, Any]:
    place: Any = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return content


QUANTIZATION: dict[str, Any] = {"block": None, "head": False, "excluded": []}
NUMBERS: list[tuple[tuple[str | int, ...], list[object]]] = [
    (("dimensions", "vocab_size"), [0, 7]),
    (("dimensions", "layers"), [0, 4097]),
    (("dimensions", "heads"), [0, 5]),
    (("dimensions", "kv_heads"), [0, 4, 4096]),
    (("dimensions", "head_size"), [0, 31, 10**6]),
    (("dimensions", "max_positions"), [0]),
    (("dimensions", "rope_theta"), [0, -1.0, 1e300]),
    (("dimensions", "rms_norm_eps"), [0, -1, 0.5]),
    (("special_tokens", "mask"), [0, 1, 1024, 10**7]),
    (("special_tokens", "eos"), [2, 1024]),
    (("special_tokens", "bos"), [2, 1024]),
    (("special_tokens", "expand"), [0, 1, 2, 1024]),
    (("decoding", "block_size"), [0]),
    (("decoding", "block_add_threshold"), [1.5, -0.1]),
    (("decoding", "skip_threshold"), [2]),
    (("prediction_shift",), [0, 2]),
    (("files", 0, "size"), []),
    (("files", 0, "sha256"), ["", "0" * 63, "g" * 64, "0" * 64 + "\n"]),
    (("tensors", "head.weight", "length"), []),
    (("tensors", "head.weight", "shape"), [[-1], [10**30], [1] * 9]),
]


@pytest.mark.parametrize(("path", "values"), NUMBERS, ids=lambda each: ".".join(map(str, each))[:40])
def test_number_out_of_range_raises(content: dict[str, Any], path: tuple[str | int, ...], values: list[object]) -> None:
    whole = json.dumps(content)
    huge = HUGE[3:] if path[-1] in ("size", "offset", "length", "rope_theta") else HUGE
    for value in [*values, *huge, "1", None if path[-1] not in ("bos", "expand") else "x", {}, True]:
        with pytest.raises(BadInputError) as caught:
            read(with_value(json.loads(whole), value, *path))
        assert str(path[-1]).split("_")[0] in str(caught.value)


def test_huge_caches_raise(content: dict[str, Any]) -> None:
    """Each number is in its range, but their product is too large."""
    content["dimensions"].update(layers=4000, kv_heads=2, heads=4096, head_size=4096)
    with pytest.raises(BadInputError, match="whose caches take"):
        read(content)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stages": [{"graph": "model.onnx", "first_layer": 0, "end_layer": 4000}]}, "stages of the layers 0-4000"),
        ({"stages": [{"graph": "model.onnx", "first_layer": 2**40, "end_layer": 5}]}, "first_layer"),
        ({"stages": [{"graph": "model.onnx", "first_layer": 0, "end_layer": 5}]}, "'model.onnx' twice"),
        ({"portable_graph": "model.onnx.data"}, "'model.onnx.data' twice"),
        ({"weights": "manifest.json"}, "not in its list"),
        ({"dialect": "portable", "stages": [{"graph": "a", "first_layer": 0, "end_layer": 5}]}, "stages in addition"),
        ({"dialect": "portable", "portable_graph": "portable.onnx"}, "portable_graph in addition"),
        ({"quantization": {"kind": "int4", "block": 0, "activation": "none", "head": True, "excluded": []}}, "block"),
    ],
)
def test_contradicting_fields_raise(content: dict[str, Any], change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError) as caught:
        read({**content, **change})
    assert message in caught.value.received


MATRIX = "layers.0.mlp.up.weight"
CONTRADICTIONS: list[tuple[str, tuple[str, ...], object, str]] = [
    *((kind, ("quantization",), None, "kind = None with matrices in ") for kind in ("int8", "int4", "fp8")),
    ("fp8", ("quantization", "kind"), "int8", "kind = int8 with matrices in float8e4m3fn"),
    ("int8", ("quantization", "kind"), "fp8", "kind = fp8 with matrices in int8"),
    ("int8", ("tensors", MATRIX, "dtype"), "float8e4m3fn", "matrices in float8e4m3fn and int8"),
    ("none", ("quantization",), {**QUANTIZATION, "kind": "int4", "activation": "none"}, "in floating point"),
    ("int4", ("quantization", "block"), None, "block = None"),
    ("int4", ("quantization", "block"), 64, "the scales float32 [6, "),
    ("int8", ("quantization", "block"), 32, "block = 32"),
    ("fp8", ("quantization", "activation"), "none", "activation = none for fp8 in standard"),
    ("int8", ("quantization", "activation"), "fp8_per_row", "activation = fp8_per_row for int8"),
    ("int4", ("quantization", "activation"), "int8_per_row", "activation = int8_per_row for int4"),
    ("portable", ("quantization", "activation"), "int8_per_row", "for int8 in portable"),
    ("fp8", ("quantization", "head"), True, "head = True"),
    ("int4", ("quantization", "head"), False, "head = False"),
    ("int8", ("quantization", "excluded"), ["*.mlp.up.*"], f"excluded = '*.mlp.up.*', which matches {MATRIX}"),
    ("int8", ("quantization", "excluded"), ["*.no_such.*"], "excluded = '*.no_such.*', which matches no tensor"),
    ("int8", ("quantization", "excluded"), ["[" * 60_000], "length"),
    ("int8", ("quantization", "calibration"), {"method": "gptq", "rows": 1, "sha256": "0" * 64}, "calibration"),
    ("int8", ("tensors", f"{MATRIX}_scale", "dtype"), "float16", f"the scales float16 [512] for {MATRIX} int8"),
    ("fp8", ("tensors", f"{MATRIX}_scale", "shape"), [192], "the scales float32 [192]"),
    ("int4", ("tensors", MATRIX, "shape"), [176, 512], "the scales float32 [6, 512]"),
    ("fp8", ("tensors", MATRIX, "shape"), [512 * 192], "the scales float32 [512]"),
]


@pytest.mark.parametrize(("kind", "place", "value", "message"), CONTRADICTIONS)
def test_quantization_that_contradicts_the_tensors_raises(
    export_tiny: Callable[..., Path], kind: str, place: tuple[str, ...], value: object, message: str
) -> None:
    form = {"none": {}, "portable": {"quantize": "int8", "dialects": ("portable",)}}.get(kind, {"quantize": kind})
    path = export_tiny(with_logits=False, **form) / MANIFEST_NAME
    content = json.loads(path.read_bytes())
    read(content)
    with pytest.raises(BadInputError) as caught:
        read(with_value(content, value, *place))
    assert message in caught.value.received


@pytest.mark.parametrize(("pattern", "fits"), [("head.*", True), ("embedding.*", False)])
def test_only_a_pattern_of_the_head_excludes_it(export_tiny: Callable[..., Path], pattern: str, fits: bool) -> None:
    """The head of an FP8 bundle is in floating point."""
    content = json.loads((export_tiny(with_logits=False, quantize="fp8") / MANIFEST_NAME).read_bytes())
    content["quantization"].update(head=True, excluded=[pattern])
    with contextlib.nullcontext() if fits else pytest.raises(BadInputError, match="head = True"):
        read(content)


def test_each_quantized_tensor_has_scales(export_tiny: Callable[..., Path]) -> None:
    content = json.loads((export_tiny(with_logits=False, quantize="int8") / MANIFEST_NAME).read_bytes())
    del content["tensors"][f"{MATRIX}_scale"]
    with pytest.raises(BadInputError, match=rf"the scales none for {MATRIX} int8 \[192, 512\]"):
        read(content)


def test_repeated_file_and_listed_manifest_raise(content: dict[str, Any]) -> None:
    files = content["files"]
    for extra in (files[0], {**files[0], "path": MANIFEST_NAME}):
        with pytest.raises(BadInputError):
            read({**content, "files": [*files, extra]})


@pytest.mark.parametrize("name", sorted(LIKENESSES))
def test_published_models_are_within_the_ranges(content: dict[str, Any], name: str) -> None:
    like = LIKENESSES[name]
    manifest = read(content)
    tokens = msgspec.structs.replace(manifest.special_tokens, mask=like.mask, eos=like.eos, pad=like.eos, bos=like.bos)
    expected = msgspec.structs.replace(manifest, dimensions=like.dimensions, special_tokens=tokens)
    assert manifest_from_json(json_from_record(expected), source="") == expected


def test_shifts_match_the_exporter() -> None:
    assert {name: each.architecture.prediction_shift for name, each in FAMILIES.items()} == PREDICTION_SHIFTS


def test_twins_of_schema_2_are_read(content: dict[str, Any]) -> None:
    content.pop("twins", None)
    files, source = content["files"], {"source": content["graph"], "source_sha256": "0" * 64}
    names = ("portable.onnx", "packed.onnx", "mapped.onnx", "webgpu.onnx")
    content["files"] = [*files, *({**files[0], "path": name} for name in names)]
    content["quantization"] = {**QUANTIZATION, "kind": "int8", "activation": "int8_per_row", "head": True}
    head = {"dtype": "int8", "shape": [192, 1024], "offset": 0, "length": 192 * 1024}
    content["tensors"] = {"head.weight": head, "head.weight_scale": {**head, "dtype": "float32", "shape": [1024]}}
    content["portable_graph"] = names[0]
    packed, mapped, webgpu = (
        {"graph": name, **source, **more}
        for name, more in zip(names[1:], ({}, {"mapped": True}, {"source": names[0]}), strict=True)
    )
    former = {**content, "schema": 2, "cpu_graphs": [packed, mapped], "webgpu_graph": webgpu}
    mapped = {name: value for name, value in mapped.items() if name != "mapped"}
    twins = [{**packed, "provider": "cpu"}, {**mapped, "provider": "cpu", "form": "mapped"}]
    assert read(former) == read({**content, "twins": [*twins, {**webgpu, "provider": "webgpu"}]})
    assert read({**content, "schema": 2}) == read(content)
    for wrong in ({**former, "cpu_graphs": [{**packed, "mapped": "no"}]}, {**content, "cpu_graphs": [packed]}):
        with pytest.raises(BadInputError):
            read(wrong)


REQUIRED = {
    "Manifest": "schema contract architecture dialect dtype quantization with_logits prediction_shift dimensions "
    "special_tokens decoding graph weights stages tensors files origin",
    "ModelDimensions": "vocab_size hidden_size intermediate_size layers heads kv_heads head_size max_positions "
    "rope_theta rms_norm_eps",
    "SpecialTokens": "mask eos pad bos",
    "DecodingDefaults": "block_size block_add_threshold decoded_token_threshold skip_threshold add_bos",
    "FileRecord": "path size sha256",
    "TensorRecord": "dtype shape offset length",
    "Quantization": "kind block activation head excluded",
    "Stage": "graph first_layer end_layer",
    "GraphTwin": "graph source source_sha256 provider",
    "FusedTensor": "name parts axis",
    "Origin": "checkpoint adapter tools",
}
"""Fields without a default in schema 3. Every bundle of this schema has them, whatever version wrote it."""


@pytest.mark.parametrize("record", REQUIRED)
def test_bundles_of_earlier_versions_are_readable(record: str) -> None:
    """New fields must have a default, as docs/reference/python.md promises."""
    assert manifest.SCHEMA_VERSION == 3, "list the required fields of the new schema"
    found = {field.name: field.required for field in msgspec.structs.fields(getattr(manifest, record))}
    assert [name for name, required in found.items() if required] == REQUIRED[record].split()
