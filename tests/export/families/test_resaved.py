"""Checkpoints that transformers 5 saves again give the bundles of the originals."""

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.export.checkpoints import small_checkpoint, tensors_of, written

from lopa.export.checkpoint.tensors import INDEX_NAME
from lopa.export.source import ExportSource, source_from_checkpoint

REFERENCE = Path(__file__).parents[2] / "reference"
DENSE = {"head_dim": 8, "num_hidden_layers": 1}
CHECKPOINTS: dict[str, dict[str, Any] | Path] = {
    "dream": DENSE,
    "fast-dllm-v2": REFERENCE / "families" / "fast_dllm_v2",
    "llada": REFERENCE / "families" / "llada",
    "sdar": REFERENCE / "families" / "sdar",
    "wedlm": {**DENSE, "architectures": ["WeDLMForCausalLM"], "model_type": "wedlm"},
    "wedlm-qwen3": {
        **{**DENSE, "architectures": ["WeDLMForCausalLM"], "model_type": "wedlm"},
        **{"attention_bias": False, "qk_norm": True},
    },
    "stable-diffcoder": {
        **{**DENSE, "architectures": ["StableDiffcoderForCausalLM"], "model_type": "llama", "attention_bias": False},
        "tie_word_embeddings": True,
    },
    "llada2-moe": REFERENCE / "moe" / "llada2",
    "sdar-moe": REFERENCE / "moe" / "sdar_moe",
    "llada-moe": REFERENCE / "moe" / "llada_moe",
}
MODELS: dict[str, tuple[Any, Any]] = {
    "dream": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "fast-dllm-v2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "sdar": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "wedlm": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "wedlm-qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "stable-diffcoder": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "sdar-moe": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM),
}
"""Classes with the tensor names of the family. transformers has none for the other families."""


class _OwnConfig(transformers.PretrainedConfig):  # type: ignore[misc]
    """A configuration class like that of a checkpoint's own code."""

    def __init__(self, rope_theta: float = 1e4, rope_scaling: Any = None, **kwargs: Any) -> None:
        self.rope_theta = rope_theta
        self.rope_scaling = rope_scaling
        super().__init__(**kwargs)


def original(name: str, folder: Path) -> Path:
    """Write the original checkpoint of a family to `folder`."""
    made = CHECKPOINTS[name]
    if isinstance(made, dict):
        return small_checkpoint(folder, changes=made)
    return Path(shutil.copytree(made, folder, ignore=shutil.ignore_patterns("traces")))


def saved_again(name: str, checkpoint: Path, folder: Path, **save: Any) -> Path:
    """Save the checkpoint as transformers' class of the family does, with its own model_type and class."""
    shutil.copytree(checkpoint, folder)
    values = json.loads((checkpoint / "config.json").read_text())
    own = {key: values[key] for key in ("model_type", "architectures")}
    plain = {key: value for key, value in values.items() if key not in ("auto_map", *own)}
    if name in MODELS:
        config_class, model_class = MODELS[name]
        config = config_class.from_dict(plain)
        tensors = tensors_of(checkpoint)
        for path in (*folder.glob("*.safetensors"), folder / INDEX_NAME):
            path.unlink(missing_ok=True)
        model = model_class.from_pretrained(None, config=config, state_dict=tensors, dtype=torch.float32)
        model.save_pretrained(folder, **save)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # rope_scaling is deprecated
            _OwnConfig(**plain).save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**written, **own}))
    return folder


def same_bundle(first: ExportSource, second: ExportSource, folder: Path) -> bool:
    """Compare all that a bundle has of a checkpoint's files, except of the tokenizer's."""
    assert first.config.dimensions == second.config.dimensions
    assert first.config.token_ids == second.config.token_ids
    assert (first.config.stops, first.config.block_size) == (second.config.stops, second.config.block_size)
    one, other = written(first, folder), written(second, folder)
    return [*one] == [*other] and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_saved_again(tmp_path: Path, name: str) -> None:
    checkpoint = original(name, tmp_path / "checkpoint")
    again = saved_again(name, checkpoint, tmp_path / "again")
    written = json.loads((again / "config.json").read_text())
    assert "rope_parameters" in written
    source = source_from_checkpoint(again, None)
    assert same_bundle(source_from_checkpoint(checkpoint, None), source, tmp_path)
    assert source.warnings == ()


def test_experts_that_transformers_fuses(tmp_path: Path) -> None:
    checkpoint = original("sdar-moe", tmp_path / "checkpoint")
    again = saved_again("sdar-moe", checkpoint, tmp_path / "again", save_original_format=False)
    assert "model.layers.0.mlp.experts.gate_up_proj" in tensors_of(again)
    assert "num_local_experts" in json.loads((again / "config.json").read_text())
    assert same_bundle(source_from_checkpoint(checkpoint, None), source_from_checkpoint(again, None), tmp_path)


@pytest.mark.parametrize("name", ["llada2-moe", "llada-moe"])
@pytest.mark.parametrize("fused", [False, True])
def test_experts_in_one_tensor_per_layer(tmp_path: Path, name: str, fused: bool) -> None:
    """VeOmni stacks gate, up and down without .weight, and transformers 5 also fuses gate and up."""
    checkpoint = original(name, tmp_path / "checkpoint")
    before = source_from_checkpoint(checkpoint, None)
    tensors = load_file(checkpoint / "model.safetensors")
    experts = before.config.dimensions.moe.experts  # type: ignore[union-attr]
    for module in {each.partition(".experts.")[0] for each in tensors if ".experts." in each}:
        parts = {
            kind: torch.stack([tensors.pop(f"{module}.experts.{i}.{kind}_proj.weight") for i in range(experts)])
            for kind in ("gate", "up", "down")
        }
        if fused:
            parts["gate_up"] = torch.cat([parts.pop("gate"), parts.pop("up")], 1)
        tensors |= {f"{module}.experts.{kind}_proj": part for kind, part in parts.items()}
    again = Path(shutil.copytree(checkpoint, tmp_path / "again"))
    save_file(tensors, again / "model.safetensors")
    assert same_bundle(before, source_from_checkpoint(again, None), tmp_path)
