"""Published GPTQ and AWQ checkpoints: every layout is read, exact integers stay exact, the rest is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file
from tests.cli.command import lopa_export
from tests.export.checkpoint.packed_checkpoint import packed_checkpoint, write_config

from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.export.checkpoint.config import config_from_checkpoint
from lopa.export.checkpoint.packed_weights import PackedFormat, with_packed_weights
from lopa.export.checkpoint.tensors import tensors_from_checkpoint, tensors_from_file
from lopa.export.weights.quantization import QuantizationChoice
from lopa.runtime import Decoder
from lopa.runtime.bundle.weights import weights_from_bundle
from lopa.runtime.errors import BadInputError
from lopa.tiny import ADAPTER, CHECKPOINT

LAYOUTS: dict[str, dict[str, Any]] = {
    "gptq": {},
    "gptq-128": {"group": 64},
    "gptq-column": {"group": -1},
    "gptq-v2": {"second_version": True},
    "gptq-asymmetric": {"symmetric": False},
    "gptq-mixed-groups": {"mixed_groups": True},
    "gptq-8-bits": {"bits": 8},
    "awq": {"method": "awq"},
    "awq-asymmetric": {"method": "awq", "symmetric": False, "group": 64},
}
EXACT = ("gptq-128", "gptq-column", "awq")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_read(tmp_path: Path, layout: str) -> None:
    values = packed_checkpoint(tmp_path / "c", **LAYOUTS[layout])
    config = config_from_checkpoint(tmp_path / "c")
    stored = with_packed_weights(tensors_from_checkpoint(tmp_path / "c"), config.packed, "c")
    assert not [name for name in stored if name.endswith(("qweight", "qzeros", "scales", "g_idx"))]
    for name, expected in values.items():
        tensor = stored[name]
        assert tensor.shape == expected.shape
        np.testing.assert_allclose(tensor.read().double().numpy(), expected, rtol=1e-6)
        some = torch.empty(5, expected.shape[1])
        tensor.read_rows(3, some)
        assert torch.equal(some, tensor.read()[3:8])


@pytest.mark.parametrize("layout", EXACT)
def test_int4_keeps_the_integers_of_symmetric_matrices(tmp_path: Path, layout: str) -> None:
    values = packed_checkpoint(tmp_path / "c", **LAYOUTS[layout])
    bundle = bundle_from_checkpoint(tmp_path / "c", tmp_path / "b", quantization=QuantizationChoice("int4"))
    weights, quantization = weights_from_bundle(bundle), bundle.manifest.quantization
    assert quantization is not None
    assert (quantization.kind, quantization.block, quantization.calibration) == ("int4", 32, None)
    for name, place in (
        ("model.layers.0.self_attn.q_proj.weight", "layers.0.attention.query.weight"),
        ("model.layers.2.mlp.down_proj.weight", "layers.2.mlp.down.weight"),
    ):
        np.testing.assert_allclose(weights[place], values[name].T, rtol=1e-6)


@pytest.mark.parametrize("layout", ["awq-asymmetric", "gptq-mixed-groups"])
def test_int4_of_other_layouts_is_rounded_again_within_half_a_step(tmp_path: Path, layout: str) -> None:
    values = packed_checkpoint(tmp_path / "c", **LAYOUTS[layout])
    bundle = bundle_from_checkpoint(tmp_path / "c", tmp_path / "b", quantization=QuantizationChoice("int4"))
    weights = weights_from_bundle(bundle)
    found, expected = weights["layers.2.mlp.down.weight"], values["model.layers.2.mlp.down_proj.weight"].T
    scales = weights.scales("layers.2.mlp.down.weight")
    assert scales is not None
    steps = np.abs(found - expected) / np.repeat(np.abs(scales), 32, axis=0)
    assert 0.2 < steps.max() <= 0.501


@pytest.mark.usefixtures("few_cases")
@pytest.mark.parametrize(("layout", "kind"), [("gptq", "int4"), ("awq", "none")])
def test_the_command_exports_verifies_and_decodes(tmp_path: Path, layout: str, kind: str) -> None:
    packed_checkpoint(tmp_path / "c", **LAYOUTS[layout])
    done = lopa_export("onnx", tmp_path / "c", "-o", tmp_path / "b", "--quantize", kind)
    assert done.returncode == 0, done.stderr
    checked = lopa_export("verify", tmp_path / "b", "--checkpoint", tmp_path / "c")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    with Decoder.open(tmp_path / "b") as decoder:
        assert decoder.generate("Question: 1 + 1?", max_new_tokens=8).steps
    if kind == "int4":
        pytest.importorskip("openvino")
        checked = lopa_export("verify", tmp_path / "b", "--device", "openvino:CPU")
        assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.slow
def test_an_adapter_is_merged_into_the_values(tmp_path: Path) -> None:
    packed_checkpoint(tmp_path / "c")
    for kind in ("none", "int4"):
        done = lopa_export("onnx", tmp_path / "c", "--lora", ADAPTER, "-o", tmp_path / kind, "--quantize", kind)
        assert done.returncode == 0, done.stderr
        checked = lopa_export("verify", tmp_path / kind, "--checkpoint", tmp_path / "c", "--lora", ADAPTER)
        assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "the method 'bitsandbytes'"),
        ({"bits": 4}, "the method None"),
        ({"quant_method": "gptq", "bits": 3}, "3 bits"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "the layout 'marlin'"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "the layout 'gemv'"),
        ({"quant_method": "gptq", "bits": 4, "version": "gptq_v2"}, "the layout 'gptq' and 'gptq_v2'"),
        ({"quant_method": "awq", "bits": 8}, "8 bits"),
        ({"quant_method": "gptq", "bits": 4, "format": "gemm"}, "the layout 'gemm'"),
        ({"quant_method": "gptq", "bits": 4, "is_marlin_format": True}, "is_marlin_format = True"),
        ({"quant_method": "gptq", "bits": 4, "format": "gptq", "checkpoint_format": "gptq_v2"}, "'gptq_v2' and 'gptq'"),
        ({"quant_method": "gptq", "bits": 4, "pack_dtype": "int16"}, "pack_dtype = 'int16'"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*down.*": {"bits": 8}}}, "dynamic = "),
        ({"quant_method": "gptq", "bits": 4, "adapter": {"name": "eora"}}, "adapter = "),
        ({"quant_method": "gptq", "bits": 4, "rotation": "hadamard"}, "rotation = 'hadamard'"),
        ({"quant_method": "gptq", "bits": 4, "group_size": "128"}, "groups of '128'"),
        ({"quant_method": "awq", "bits": 4, "format": "gemv"}, "the layout 'gemv'"),
        ({"quant_method": "awq", "bits": 4, "version": "gemm", "format": "gemv"}, "'gemv' and 'gemm'"),
        ({"quant_method": "awq", "bits": 4, "backend": "llm-awq"}, "backend = 'llm-awq'"),
        ({"quant_method": "awq", "w_bit": 8}, "8 bits"),
        ({"quant_method": ["gptq"], "bits": 4}, "the method"),
    ],
)
def test_other_methods_are_refused_by_name(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    write_config(tmp_path, settings)
    with pytest.raises(BadInputError, match=message):
        config_from_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["format", "checkpoint_format"])
def test_the_second_version_by_any_name(tmp_path: Path, name: str) -> None:
    values = packed_checkpoint(tmp_path / "c", second_version=True, symmetric=False)
    write_config(tmp_path / "c", {"quant_method": "gptq", "bits": 4, "group_size": 32, name: "GPTQ_v2"})
    config = config_from_checkpoint(tmp_path / "c")
    stored = with_packed_weights(tensors_from_checkpoint(tmp_path / "c"), config.packed, "c")
    for matrix, expected in values.items():
        np.testing.assert_allclose(stored[matrix].read().double().numpy(), expected, rtol=1e-6)


def test_groups_of_another_size_than_config_json_has(tmp_path: Path) -> None:
    packed_checkpoint(tmp_path / "c", group=64)
    write_config(tmp_path / "c", {"quant_method": "gptq", "bits": 4, "group_size": 32})
    config = config_from_checkpoint(tmp_path / "c")
    with pytest.raises(BadInputError, match="scales has the shape"):
        with_packed_weights(tensors_from_checkpoint(tmp_path / "c"), config.packed, "c")


@pytest.mark.parametrize("file", ["quantize_config.json", "quant_config.json"])
def test_a_quantizer_s_own_file(tmp_path: Path, file: str) -> None:
    own = {"bits": 4, "group_size": 32, "desc_act": False}
    write_config(tmp_path, {**own, "quant_method": "gptq", "sym": True})
    same: list[dict[str, Any]] = [{}, {"checkpoint_format": "gptq"}, {"quant_method": "gptq", "meta": {}}]
    for more in same:
        (tmp_path / file).write_text(json.dumps({**own, "model_file_base_name": "model", **more}))
        assert config_from_checkpoint(tmp_path).packed == PackedFormat("gptq", 4, 1, 32)
    others: list[dict[str, Any]] = [{"checkpoint_format": "gptq_v2"}, {"bits": 8}, {"group_size": 64}]
    for more in others:
        (tmp_path / file).write_text(json.dumps({**own, **more}))
        with pytest.raises(BadInputError, match=f"{file} contradicts the quantization_config"):
            config_from_checkpoint(tmp_path)


_QUANTIZED = {
    "gptq": transformers.GPTQConfig(bits=4, group_size=32).to_dict(),
    "awq": transformers.AwqConfig(bits=4, group_size=32).to_dict(),
}
_CHANGED = {"quant_method": "fp8", "bits": 8, "group_size": 64, "format": "gptq_v2", "checkpoint_format": "gptq_v2"}
_CHANGED |= {"version": "gemv", "backend": "llm-awq"}


@pytest.mark.parametrize("method", _QUANTIZED)
def test_every_entry_that_transformers_knows(tmp_path: Path, method: str) -> None:
    """Each is used, known to change nothing, or refused by name."""
    whole = {**_QUANTIZED[method], "quant_method": method}
    write_config(tmp_path, whole)
    before = config_from_checkpoint(tmp_path)
    assert before.warnings == ()
    for name, value in _QUANTIZED[method].items():
        other = (not value) if isinstance(value, bool) else 7 if isinstance(value, int) else "other"
        changed = _CHANGED.get(name, other)
        layout = ("format", "checkpoint_format")
        write_config(tmp_path, {**whole, **dict.fromkeys(layout if name in layout else (name,), changed)})
        try:
            after = config_from_checkpoint(tmp_path)
        except BadInputError as error:
            assert repr(changed) in error.received or f"{changed} bits" in error.received  # noqa: PT017
            continue
        assert after.warnings == ()
        assert (after != before) == (name in ("bits", "group_size", *layout))


def test_an_unknown_entry_is_warned_of(tmp_path: Path) -> None:
    write_config(tmp_path, {"bits": 4, "group_size": 32, "quant_method": "gptq", "unheard": 3, "absent": None})
    (warning,) = config_from_checkpoint(tmp_path).warnings
    assert "quantization_config: ignoring unheard, which" in warning


def _dropped(ending: str, folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith(ending))
    save_file({key: value for key, value in tensors.items() if key != name}, folder / "model.safetensors")


def _changed(ending: str, folder: Path, change: Any) -> None:
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith(ending))
    save_file({**tensors, name: np.ascontiguousarray(change(tensors[name]))}, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda c: _dropped(".qzeros", c), "qzeros is missing"),
        (lambda c: _dropped(".scales", c), "scales is missing"),
        (lambda c: _dropped(".qweight", c), "has no tensor|does not have|unknown|unexpected"),
        (lambda c: _changed(".scales", c, lambda each: each[:-1]), "has the shape"),
        (lambda c: _changed(".qzeros", c, lambda each: each[:, :-1]), "has the shape"),
        (lambda c: _changed(".g_idx", c, lambda each: each[:-1]), "has the shape"),
        (lambda c: _changed(".g_idx", c, lambda each: each + 1000), "in groups outside 0 to"),
        (lambda c: _changed(".qzeros", c, lambda each: each | 15), "has a zero point of 15 in the first layout"),
        (lambda c: _changed(".qweight", c, lambda each: each.astype(np.float32)), "has the type 'F32'"),
        (lambda c: _changed(".scales", c, lambda each: each * np.float16(np.nan)), "NaN"),
        (
            lambda c: shutil.copy(Path(__file__).parents[3] / "src/lopa/tiny/base/config.json", c),
            "no quantization_config",
        ),
    ],
)
def test_damaged_parts_are_refused_and_nothing_is_left(tmp_path: Path, damage: Any, message: str) -> None:
    packed_checkpoint(tmp_path / "c")
    damage(tmp_path / "c")
    with pytest.raises(BadInputError, match=message):
        bundle_from_checkpoint(tmp_path / "c", tmp_path / "b", quantization=QuantizationChoice("int4"))
    assert not (tmp_path / "b").exists()


def test_calibration_of_packed_matrices_is_refused(tmp_path: Path) -> None:
    packed_checkpoint(tmp_path / "c")
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"prompt": "a", "answer": "b"}\n')
    choice = QuantizationChoice("int4", calibrate=texts)
    with pytest.raises(BadInputError, match="quantized already"):
        bundle_from_checkpoint(tmp_path / "c", tmp_path / "b", quantization=choice)


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_matrices_of_another_tool_are_within_half_a_step_of_the_original(method: str) -> None:
    """auto-round packed a matrix of the embedded checkpoint (published/README.md)."""
    name = "model.layers.0.mlp.down_proj.weight"
    stored = tensors_from_file(Path(__file__).parent / "published" / f"{method}.safetensors")
    packed = with_packed_weights(stored, PackedFormat(method, 4, int(method == "gptq")), "recorded")  # type: ignore[arg-type]
    original = tensors_from_checkpoint(CHECKPOINT)[name].read().float().numpy()
    scales = load_file(Path(__file__).parent / "published" / f"{method}.safetensors")[name.replace("weight", "scales")]
    steps = np.abs(packed[name].read().numpy() - original) / np.repeat(np.abs(scales), 32, axis=0).T
    # Some values of a group are cut off. Any other order of the numbers has a quantile of several steps.
    assert 0.4 < np.quantile(steps, 0.95) < 0.51
