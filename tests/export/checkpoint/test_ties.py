"""Heads that config.json ties to the embedding, and their adapters, against transformers and PEFT."""

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.export.checkpoint.test_lora import _our_merge
from tests.export.checkpoints import CONFIG, edit_config, edit_weights, shard, small_checkpoint

from lopa.export.checkpoint.tensors import SINGLE_NAME
from lopa.export.source import source_from_checkpoint
from lopa.runtime.errors import BadInputError

LLADA = Path(__file__).parents[2] / "reference" / "families" / "llada"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "tie_word_embeddings": True,
}


def tied_checkpoint(folder: Path, head: str = "none") -> Path:
    """Write a Qwen2 checkpoint that ties its head. The file has no head, an equal one or its own, or a head alone."""
    checkpoint = small_checkpoint(folder, changes=QWEN2)
    tensors = load_file(checkpoint / SINGLE_NAME)
    if head != "none":
        tensors[HEAD] = tensors[EMBEDDING].clone() if head == "equal" else torch.randn_like(tensors[EMBEDDING])
    if head == "alone":
        del tensors[EMBEDDING]
    save_file(tensors, checkpoint / SINGLE_NAME, {"format": "pt"})
    return checkpoint


def loaded(checkpoint: Path) -> Any:
    """Return the checkpoint's network as transformers reads it."""
    return transformers.Qwen2ForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)


def outer_weights(checkpoint: Path, lora: Path | None, folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the bundle's embedding and head."""
    source = source_from_checkpoint(checkpoint, lora, "dream")
    merged = _our_merge(source, folder)
    return merged[EMBEDDING], merged[HEAD]


@pytest.mark.parametrize(
    ("head", "shards"), [("none", False), ("equal", True), ("own", False), ("own", True), ("alone", False)]
)
def test_the_head_is_transformers_head(tmp_path: Path, head: str, shards: bool) -> None:
    checkpoint = tied_checkpoint(tmp_path / "checkpoint", head)
    if shards:
        for path in shard(checkpoint):
            save_file(load_file(path), path, {"format": "pt"})
    model = loaded(checkpoint)
    embedding, own = outer_weights(checkpoint, None, tmp_path)
    assert torch.equal(embedding, model.get_input_embeddings().weight)
    assert torch.equal(own, model.get_output_embeddings().weight)
    assert torch.equal(embedding, own) == (head != "own")


def test_a_family_with_its_own_entry_for_ties(tmp_path: Path) -> None:
    """LLaDA's code ignores a head if weight_tying is set, and transformers 5 would use it."""
    shutil.copytree(LLADA, tmp_path, dirs_exist_ok=True)
    edit_config(tmp_path, weight_tying=True)
    with pytest.raises(BadInputError, match=r"other values than the embedding, but config.json has weight_tying"):
        source_from_checkpoint(tmp_path, None)
    head, embedding = "model.transformer.ff_out.weight", "model.transformer.wte.weight"
    edit_weights(tmp_path, {head: load_file(tmp_path / SINGLE_NAME)[embedding].clone()})
    source_from_checkpoint(tmp_path, None)
    edit_weights(tmp_path, {head: None})
    merged = _our_merge(source_from_checkpoint(tmp_path, None), tmp_path)
    assert torch.equal(merged[head], merged[embedding])


def save_adapter(checkpoint: Path, folder: Path, settings: dict[str, Any]) -> Any:
    """Save an adapter with random values. Return the network after PEFT has loaded and merged it."""
    torch.manual_seed(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT warns of ties
        config = peft.LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], **settings})
        model = peft.get_peft_model(loaded(checkpoint), config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn_like(parameter))
            if not settings:
                model.get_input_embeddings().weight.add_(1)  # saved without modules_to_save
        model.save_pretrained(folder, save_embedding_layers=True if not settings else "auto")
        return peft.PeftModel.from_pretrained(loaded(checkpoint), folder).merge_and_unload()


@pytest.mark.parametrize(
    ("head", "saved", "ensured"),
    [
        ("none", ["embed_tokens"], False),
        ("own", ["embed_tokens"], False),
        ("equal", ["lm_head"], False),
        ("own", ["lm_head", "embed_tokens"], False),
        ("equal", ["embed_tokens"], True),
        ("none", ["lm_head"], True),
        ("own", ["lm_head", "embed_tokens"], True),
        ("none", [], False),
        ("own", [], False),
    ],
)
def test_saved_modules_of_a_tied_base_are_peft_s(tmp_path: Path, head: str, saved: list[str], ensured: bool) -> None:
    """Without `saved`, the layers are saved without modules_to_save."""
    checkpoint, folder = tied_checkpoint(tmp_path / "checkpoint", head), tmp_path / "adapter"
    settings = {"modules_to_save": saved, "ensure_weight_tying": ensured} if saved else {}
    expected = save_adapter(checkpoint, folder, settings)
    embedding, own = outer_weights(checkpoint, folder, tmp_path)
    assert torch.equal(embedding, expected.get_input_embeddings().weight)
    assert torch.equal(own, expected.get_output_embeddings().weight)


def test_ties_of_a_family_whose_modules_peft_does_not_know(tmp_path: Path) -> None:
    """PEFT ties only modules named embed_tokens and lm_head."""
    checkpoint, folder = Path(shutil.copytree(LLADA, tmp_path / "checkpoint")), tmp_path / "adapter"
    folder.mkdir()
    edit_config(checkpoint, weight_tying=True)
    edit_weights(checkpoint, {"model.transformer.ff_out.weight": None})
    name = "model.transformer.wte.weight"
    base, module = load_file(checkpoint / SINGLE_NAME), "model.transformer.blocks.0.q_proj"
    rows, columns = base[f"{module}.weight"].shape
    stored = {
        name: torch.randn_like(base[name]),
        f"{module}.lora_A.weight": torch.randn(4, columns),
        f"{module}.lora_B.weight": torch.randn(rows, 4),
    }
    stored = {f"base_model.model.{key}": value for key, value in stored.items()}
    save_file(stored, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": module, "modules_to_save": ["wte"]}
    (folder / "adapter_config.json").write_text(json.dumps({**settings, "ensure_weight_tying": True}))
    with pytest.raises(BadInputError, match="ensure_weight_tying"):
        source_from_checkpoint(checkpoint, folder)


@pytest.mark.parametrize("kept", [EMBEDDING, HEAD])
def test_one_saved_tensor_of_a_tie_is_both(tmp_path: Path, kept: str) -> None:
    """PEFT copies it into the parameter that both share."""
    checkpoint, folder = tied_checkpoint(tmp_path / "checkpoint"), tmp_path / "adapter"
    save_adapter(checkpoint, folder, {})
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    del tensors[f"base_model.model.{HEAD if kept == EMBEDDING else EMBEDDING}"]
    save_file(tensors, path, {"format": "pt"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = peft.PeftModel.from_pretrained(loaded(checkpoint), folder).merge_and_unload()
    embedding, own = outer_weights(checkpoint, folder, tmp_path)
    assert torch.equal(embedding, expected.get_input_embeddings().weight)
    assert torch.equal(own, expected.get_output_embeddings().weight)
    tensors |= {f"base_model.model.{name}": torch.randn(CONFIG["vocab_size"], 32) for name in (EMBEDDING, HEAD)}
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(BadInputError, match="modules_to_save"):
        source_from_checkpoint(checkpoint, folder, "dream")


@pytest.mark.parametrize(("module", "ensured"), [("lm_head", True), ("embed_tokens", False)])
def test_lora_of_a_tied_head_is_refused(tmp_path: Path, module: str, ensured: bool) -> None:
    """PEFT computes it with other weights before merging than after."""
    checkpoint, folder = tied_checkpoint(tmp_path / "checkpoint"), tmp_path / "adapter"
    save_adapter(checkpoint, folder, {"target_modules": ["q_proj", module], "ensure_weight_tying": ensured})
    with pytest.raises(BadInputError, match=r"lora_(embedding_)?A.*does not fit") as caught:
        source_from_checkpoint(checkpoint, folder, "dream")
    assert "head that is tied" in caught.value.expected


def test_lora_of_a_head_of_its_own(tmp_path: Path) -> None:
    """PEFT saves the head's base weight too. Equal values change nothing, and others belong to another base."""
    checkpoint, folder = tied_checkpoint(tmp_path / "checkpoint", "own"), tmp_path / "adapter"
    expected = save_adapter(checkpoint, folder, {"target_modules": ["q_proj", "lm_head"]})
    assert any("base_layer" in name for name in load_file(folder / "adapter_model.safetensors"))
    embedding, own = outer_weights(checkpoint, folder, tmp_path)
    assert torch.equal(embedding, expected.get_input_embeddings().weight)
    torch.testing.assert_close(own, expected.get_output_embeddings().weight, rtol=1e-6, atol=1e-6)
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    tensors["base_model.model.lm_head.base_layer.weight"][3, 4] += 1
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(BadInputError, match=r"lm_head.base_layer.weight, which does not fit"):
        source_from_checkpoint(checkpoint, folder, "dream")
