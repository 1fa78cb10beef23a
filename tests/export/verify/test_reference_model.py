"""transformers' networks as a reference: they apply the given mask and no causal one."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from tests.export.conftest import RECORDED
from transformers import Qwen2Config, Qwen2ForCausalLM

from lopa.export.source import source_from_checkpoint
from lopa.export.verify.cases import Sequences
from lopa.export.verify.reference_model import TransformersReference, network_from_checkpoint
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import Manifest, ModelDimensions
from lopa.runtime.errors import BadInputError
from lopa.tiny import ADAPTER, CHECKPOINT

BRANCHES, LENGTH = 2, 9
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def manifest(tiny_bundle: Path) -> Manifest:
    return Bundle.open(tiny_bundle).manifest


@pytest.fixture(scope="module")
def reference(manifest: Manifest) -> TransformersReference:
    return TransformersReference(network_from_checkpoint(manifest.dimensions, "dream", CHECKPOINT, ADAPTER))


def sequences() -> Sequences:
    rng = np.random.default_rng(8)
    return Sequences(
        input_ids=rng.integers(975, size=(BRANCHES, LENGTH)),
        position_ids=np.tile(np.arange(20, 20 + LENGTH), (BRANCHES, 1)),
        mask=np.ones((BRANCHES, LENGTH, LENGTH), np.bool_),
        wanted=np.tile(np.arange(LENGTH), (BRANCHES, 1)),
    )


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft's own call
def test_a_causal_mask_gives_the_models_default_behaviour(reference: TransformersReference) -> None:
    causal = replace(sequences(), mask=np.tril(sequences().mask))
    model = Qwen2ForCausalLM.from_pretrained(CHECKPOINT, config=Qwen2Config.from_pretrained(CHECKPOINT))
    model = PeftModel.from_pretrained(model, ADAPTER).eval()
    with torch.no_grad():
        expected = model(torch.from_numpy(causal.input_ids), position_ids=torch.from_numpy(causal.position_ids)).logits
    np.testing.assert_allclose(reference.forward(causal).logits, expected, atol=2e-4)
    assert np.abs(reference.forward(sequences()).logits - expected.numpy()).max() > 0.1


def test_other_architectures_have_no_reference_model(manifest: Manifest) -> None:
    with pytest.raises(BadInputError, match="architecture 'unheard-of'"):
        network_from_checkpoint(manifest.dimensions, "unheard-of", CHECKPOINT, ADAPTER)


def changed_copy(folder: Path, checkpoint: Path, change: Callable[[Tensors], object]) -> Path:
    """Copy a checkpoint of one file to `folder` and change its tensors."""
    shutil.copytree(checkpoint, folder, ignore=shutil.ignore_patterns("traces"))
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


OUTPUT_BIAS = "model.layers.0.self_attn.o_proj.bias"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"), "there is no model.layers.1.mlp.up_proj"),
        (lambda tensors: tensors.update({OUTPUT_BIAS: torch.ones(192)}), f"there is no place for {OUTPUT_BIAS}"),
        (lambda tensors: tensors.update(other=torch.zeros(1)), "there is no place for other"),
        (
            lambda tensors: tensors.update({"model.norm.weight": torch.ones(191)}),
            r"model.norm.weight has the shape \[191\], expected \[192\]",
        ),
    ],
)
def test_missing_and_other_tensors(
    manifest: Manifest, tmp_path: Path, change: Callable[[Tensors], object], problem: str
) -> None:
    copy = changed_copy(tmp_path / "base", CHECKPOINT, change)
    with pytest.raises(BadInputError, match=problem):
        network_from_checkpoint(manifest.dimensions, "dream", copy)


@pytest.mark.parametrize("is_zero", [True, False])
def test_an_output_bias_of_qwen3_is_not_dropped(wedlm_checkpoint: Path, tmp_path: Path, is_zero: bool) -> None:
    """Qwen3 has this bias together with the others; the exported network never has it."""
    dimensions = source_from_checkpoint(wedlm_checkpoint, None).config.dimensions
    bias = torch.zeros(32) if is_zero else torch.ones(32)
    copy = changed_copy(tmp_path / "copy", wedlm_checkpoint, lambda tensors: tensors.update({OUTPUT_BIAS: bias}))
    if is_zero:
        assert_same(dimensions, "wedlm", copy, wedlm_checkpoint)
    else:
        with pytest.raises(BadInputError, match=f"there is no place for {OUTPUT_BIAS}"):
            network_from_checkpoint(dimensions, "wedlm", copy)


def test_tensors_that_change_nothing(manifest: Manifest, tmp_path: Path) -> None:
    more = {OUTPUT_BIAS: torch.zeros(192), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(16)}
    copy = changed_copy(tmp_path / "base", CHECKPOINT, lambda tensors: tensors.update(more))
    assert_same(manifest.dimensions, "dream", copy, CHECKPOINT)
    source = source_from_checkpoint(RECORDED / "llada", None)
    bias = {"model.transformer.blocks.0.attn_out.bias": torch.zeros(128)}
    copy = changed_copy(tmp_path / "llada", RECORDED / "llada", lambda tensors: tensors.update(bias))
    assert_same(source.config.dimensions, "llada", copy, RECORDED / "llada")


def assert_same(dimensions: ModelDimensions, architecture: str, one: Path, other: Path) -> None:
    found, expected = (network_from_checkpoint(dimensions, architecture, each).state_dict() for each in (one, other))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_an_adapter_beside_the_weights_is_refused(manifest: Manifest, tmp_path: Path) -> None:
    """A loader of transformers applies it without being asked."""
    copy = changed_copy(tmp_path / "base", CHECKPOINT, lambda _: None)
    for path in ADAPTER.glob("adapter_*"):
        shutil.copy(path, copy)
    with pytest.raises(BadInputError, match=r"applies the adapter_config\.json in this folder"):
        network_from_checkpoint(manifest.dimensions, "dream", copy)


@pytest.mark.parametrize("kinds", [("gate_up", "down"), ("gate", "up", "down")])
@pytest.mark.parametrize("ending", ["", ".weight"])
def test_stacked_experts(tmp_path: Path, kinds: tuple[str, ...], ending: str) -> None:
    """Check the forms of transformers 5 and of VeOmni."""

    def stack(tensors: Tensors) -> None:
        for layer in (1, 2):
            prefix = f"model.layers.{layer}.mlp.experts."
            for kind in kinds:
                parts = [
                    torch.stack([tensors.pop(f"{prefix}{expert}.{part}_proj.weight") for expert in range(16)])
                    for part in kind.split("_")
                ]
                tensors[f"{prefix}{kind}_proj{ending}"] = torch.cat(parts, dim=1)

    checkpoint = RECORDED.parent / "moe" / "llada2"
    dimensions = source_from_checkpoint(checkpoint, None).config.dimensions
    assert_same(dimensions, "llada2-moe", changed_copy(tmp_path / "stacked", checkpoint, stack), checkpoint)
