"""Weights of mixtures of experts: every expert and every fused row has its place, and bad files are refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.export.checkpoints import tensors_of, written

from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.export.source import source_from_checkpoint
from lopa.export.weights.quantization import QuantizationChoice, quantized_plan
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.weights import weights_from_bundle
from lopa.runtime.errors import BadInputError

RECORDED = Path(__file__).parents[2] / "reference" / "moe"
ROUTER = "model.layers.1.mlp.gate.weight"
EXPERT = "model.layers.1.mlp.experts.3.up_proj.weight"

Tensors = dict[str, torch.Tensor]


def changed(folder: Path, change: Callable[[Tensors], object]) -> Path:
    """Copy llada2's checkpoint to `folder` and change its tensors."""
    shutil.copytree(RECORDED / "llada2", folder, ignore=shutil.ignore_patterns("traces"))
    tensors = tensors_of(folder)
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("llada2", {"quantize": "int8"}),
        ("sdar_moe", {"quantize": "int4"}),
        ("llada_moe", {"quantize": "int4", "dtype": "float16"}),
    ],
)
def test_each_expert_is_quantized_by_itself(
    family_bundle: Callable[..., Path], name: str, options: dict[str, str]
) -> None:
    """Every number is within half a step of its own scale, and every scale is the smallest that holds its numbers."""
    bundle = Bundle.open(family_bundle(name, **options))
    stored, tensors = weights_from_bundle(bundle), tensors_of(RECORDED / name)
    sparse = 1 if name == "llada2" else 0
    assert bundle.manifest.tensors[f"layers.{sparse}.mlp.router.weight"].dtype == "float32"
    for part in ("gate", "up", "down"):
        values, scales = (
            stored[f"layers.{sparse}.mlp.experts.{part}.weight"],
            stored.scales(f"layers.{sparse}.mlp.experts.{part}.weight"),
        )
        assert scales is not None
        for expert in range(len(values)):
            exact = tensors[f"model.layers.{sparse}.mlp.experts.{expert}.{part}_proj.weight"].numpy().T
            steps = scales[expert].astype(np.float64).reshape(-1, exact.shape[1])
            blocks = exact.reshape(len(steps), -1, exact.shape[1])
            error = np.abs(values[expert].reshape(blocks.shape) - blocks) / steps[:, None]
            assert error.max() <= 0.501
            largest = np.abs(blocks).max(axis=1) / steps
            assert largest.min() > (126.9 if options["quantize"] == "int8" else 7.4)


@pytest.mark.parametrize(
    "target",
    [
        "model.layers.1.attention.query_key_value",
        "model.layers.2.mlp.experts.5.down_proj",
        "model.layers.1.mlp.gate",
        "model.layers.1.mlp.shared_experts.up_proj",
    ],
)
def test_an_adapter_changes_its_matrix_only(tmp_path: Path, target: str) -> None:
    base = tensors_of(RECORDED / "llada2")
    outputs, inputs = base[f"{target}.weight"].shape
    down, up = torch.randn(4, inputs), torch.randn(outputs, 4)
    lora = tmp_path / "lora"
    lora.mkdir()
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": [target]}
    (lora / "adapter_config.json").write_text(json.dumps(config))
    names = (f"base_model.model.{target}.lora_{part}.weight" for part in "AB")
    save_file(dict(zip(names, (down, up), strict=True)), lora / "adapter_model.safetensors")

    def merge(tensors: Tensors) -> None:
        tensors[f"{target}.weight"] += 2 * (up @ down)

    cases = ((changed(tmp_path / "merged", merge), None), (RECORDED / "llada2", lora), (RECORDED / "llada2", None))
    expected, found, plain = (written(source_from_checkpoint(*each), tmp_path) for each in cases)
    assert any(not np.array_equal(found[name], plain[name]) for name in found)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-5)


def set_nan(name: str) -> Callable[[Tensors], object]:
    def change(tensors: Tensors) -> None:
        tensors[name][0, 0] = torch.nan

    return change


def _another_shape(tensors: Tensors) -> None:
    tensors[EXPERT] = tensors[EXPERT][:16].clone()


def _one_more(tensors: Tensors) -> None:
    tensors[EXPERT.replace(".3.", ".16.")] = tensors[EXPERT].clone()


def _integer_bias(tensors: Tensors) -> None:
    tensors["model.layers.1.mlp.gate.expert_bias"] = torch.zeros(16, dtype=torch.int32)


def _short_bias(tensors: Tensors) -> None:
    tensors["model.layers.1.mlp.gate.expert_bias"] = torch.zeros(15)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop(EXPERT), r"has no tensor model\.layers\.1\.mlp\.experts\.3\.up_proj"),
        (_another_shape, r"experts\.3\.up_proj\.weight has the shape \[16, 96\]"),
        (_one_more, r"has the tensor model\.layers\.1\.mlp\.experts\.16\.up_proj\.weight, which"),
        (set_nan(ROUTER), r"the tensor model\.layers\.1\.mlp\.gate\.weight has values that are NaN"),
        (set_nan(EXPERT), r"the tensor model\.layers\.1\.mlp\.experts\.3\.up_proj\.weight has values that are NaN"),
        (_integer_bias, r"expert_bias"),
        (_short_bias, r"expert_bias has the shape \[15\]"),
    ],
)
def test_bad_files_are_refused_and_leave_nothing(
    tmp_path: Path, change: Callable[[Tensors], object], message: str
) -> None:
    checkpoint = changed(tmp_path / "checkpoint", change)
    with pytest.raises(BadInputError, match=message):
        bundle_from_checkpoint(checkpoint, tmp_path / "bundle")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_all_or_no_expert_matrices_of_a_layer_are_quantized() -> None:
    plan = source_from_checkpoint(RECORDED / "llada2", None).planned
    with pytest.raises(BadInputError, match=r"only some of the matrices layers\.1\.mlp\.experts"):
        quantized_plan(plan, QuantizationChoice("int4", exclude=("*.experts.down.weight",)))
    chosen = quantized_plan(plan, QuantizationChoice("int4", exclude=("layers.1.mlp.experts.*",)))
    kinds = {weight.name: weight.quantized for weight in chosen if ".experts." in weight.name}
    assert {kind for name, kind in kinds.items() if name.startswith("layers.1.")} == {None}
    assert {kind for name, kind in kinds.items() if name.startswith("layers.2.")} == {"int4"}
    assert not any(weight.quantized for weight in chosen if ".router." in weight.name)
