"""The simple merge that verification uses, against peft and against the exporter's weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import Qwen2Config, Qwen2ForCausalLM

from lopa.export.source import source_from_checkpoint
from lopa.export.verify.reference_weights import weights_from_files
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.weights import weights_from_bundle
from lopa.tiny import ADAPTER, CHECKPOINT


def small_model() -> Any:
    torch.manual_seed(5)
    config = Qwen2Config(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )
    return Qwen2ForCausalLM(config)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft's own call
@pytest.mark.parametrize(
    "settings",
    [
        {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "down_proj"]},
        {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "gate_proj"], "use_rslora": True},
        {
            "r": 4,
            "lora_alpha": 6,
            "target_modules": ["q_proj", "v_proj", "up_proj"],
            "rank_pattern": {"v_proj": 2},
            "alpha_pattern": {"layers.1.self_attn.v_proj": 32, "up_proj": 3},
        },
        {"r": 4, "lora_alpha": 6, "target_modules": ["o_proj"], "modules_to_save": ["lm_head"]},
    ],
)
def test_merging_as_peft_does(tmp_path: Path, settings: dict[str, Any]) -> None:
    base = small_model()
    base.save_pretrained(tmp_path / "base")
    tuned = get_peft_model(base, LoraConfig(**settings))
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                parameter.normal_()
    tuned.save_pretrained(tmp_path / "lora", save_embedding_layers=False)
    merged = tuned.merge_and_unload().state_dict()

    before = load_file(tmp_path / "base" / "model.safetensors")
    found = weights_from_files([tmp_path / "base" / "model.safetensors"], tmp_path / "lora")
    assert set(found) == set(merged)
    for name, weight in merged.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-5, atol=1e-5)
    changed = {name.split(".")[-2] for name in merged if not torch.equal(found[name], before[name])}
    assert changed == {*settings["target_modules"], *settings.get("modules_to_save", ())}


def test_the_exporter_wrote_the_same_weights(tiny_bundle: Path) -> None:
    written = weights_from_bundle(Bundle.open(tiny_bundle))
    found = weights_from_files([CHECKPOINT / "model.safetensors"], ADAPTER)
    planned = source_from_checkpoint(CHECKPOINT, None).planned
    assert {plan.source for plan in planned} == set(found)
    for plan in planned:
        expected = found[plan.source].numpy()
        if expected.ndim == 2 and plan.name != "embedding.weight":
            expected = expected.T
        np.testing.assert_allclose(written[plan.name], expected, rtol=1e-6, atol=1e-6)


def test_shards_are_joined_and_widened(tmp_path: Path) -> None:
    save_file({"a": torch.ones(3, dtype=torch.bfloat16)}, tmp_path / "1.safetensors")
    save_file({"b": torch.full((2,), 0.5, dtype=torch.float16)}, tmp_path / "2.safetensors")
    found = weights_from_files([tmp_path / "1.safetensors", tmp_path / "2.safetensors"], None)
    assert {name: (tensor.dtype, tensor.tolist()) for name, tensor in found.items()} == {
        "a": (torch.float32, [1, 1, 1]),
        "b": (torch.float32, [0.5, 0.5]),
    }
