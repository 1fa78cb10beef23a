"""Miniatures of published architectures are created, read by transformers and PEFT, exported and run."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors import safe_open
from safetensors.torch import load_file
from tests.tools.miniature import MINIATURE
from tools.checkpoint.likeness import Likeness
from tools.checkpoint.make import checkpoint_from_likeness
from transformers import Qwen2Config, Qwen2ForCausalLM

from lopa.export.checkpoint.tensors import tensors_from_checkpoint
from lopa.export.source import source_from_checkpoint

pytestmark = pytest.mark.slow

MATRICES_OF_A_LAYER = 7


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _made(folder: Path, likeness: Likeness = MINIATURE, **settings: Any) -> Path:
    checkpoint_from_likeness(likeness, folder, **settings)
    return folder


def _values(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor.read() for name, tensor in tensors_from_checkpoint(folder).items()}


def _qwen2_config(settings: dict[str, Any]) -> Qwen2Config:
    named = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    others = ("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_theta", "tie_word_embeddings")
    return Qwen2Config(**{name: settings[name] for name in (*named, *others)})


def _qwen2(folder: Path) -> Any:
    """Return transformers' model with the checkpoint's tensors in float32. Every name and shape must match."""
    model = Qwen2ForCausalLM(_qwen2_config(json.loads((folder / "config.json").read_text())))
    model.load_state_dict({name: tensor.float() for name, tensor in _values(folder).items()}, strict=True)
    return model.eval()


def test_seeds_determine_the_bytes(tmp_path: Path) -> None:
    first = _files(_made(tmp_path / "a", lora=True, seed=4))
    assert _files(_made(tmp_path / "b", lora=True, seed=4)) == first
    other = _made(tmp_path / "c", lora=True, seed=5)
    for name in ("model-00001-of-00001.safetensors", "lora/adapter_model.safetensors"):
        before, after = load_file(tmp_path / "a" / name), load_file(other / name)
        assert before.keys() == after.keys()
        for tensor in before:
            assert not torch.equal(before[tensor], after[tensor]), tensor
        values = [tensor.flatten()[:64].tolist() for tensor in before.values()]
        assert len({str(value) for value in values}) == len(values)


def test_shards_hold_the_tensors_of_one_file(tmp_path: Path) -> None:
    whole = _values(_made(tmp_path / "whole"))
    sharded = _made(tmp_path / "sharded", max_shard_bytes=50_000)
    files = sorted(sharded.glob("*.safetensors"))
    assert len(files) > 5
    assert [path.name for path in files] == [
        f"model-{i + 1:05d}-of-{len(files):05d}.safetensors" for i in range(len(files))
    ]
    for path in files:
        with safe_open(path, framework="pt") as opened:
            assert opened.metadata() == {"format": "pt"}
            names = list(opened.keys())
        values = load_file(path)
        assert all(tensor.dtype == torch.bfloat16 for tensor in values.values())
        # A tensor above the limit has its own file.
        assert sum(tensor.nbytes for tensor in values.values()) <= 50_000 or len(names) == 1
    values = _values(sharded)
    assert values.keys() == whole.keys()
    assert all(torch.equal(values[name], whole[name]) for name in whole)
    index = json.loads((sharded / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in whole.values())
    source_from_checkpoint(sharded, None)


def test_peft_and_the_export_read_the_adapter(tmp_path: Path) -> None:
    checkpoint = _made(tmp_path / "checkpoint", lora=True)
    source = source_from_checkpoint(checkpoint, checkpoint / "lora")
    assert len(source.adapter.products) == MATRICES_OF_A_LAYER * MINIATURE.dimensions.layers
    base = _qwen2(checkpoint)
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    ids = torch.randint(0, 400, (4, 32), generator=torch.Generator().manual_seed(2))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PEFT uses a deprecated name of transformers
        plain = base(ids).logits
        adapted = PeftModel.from_pretrained(base, checkpoint / "lora").merge_and_unload()
        change = (adapted(ids).logits - plain).std() / plain.std()
    merged = adapted.state_dict()
    for name, product in source.adapter.products.items():
        added = merged[name] - before[name]
        ours = product.scale * (product.up.read().float() @ product.down.read().float())
        torch.testing.assert_close(added, ours, rtol=0, atol=1e-5)
        assert (added.std() / before[name].std()).item() == pytest.approx(0.2, abs=0.06)
    assert 0.05 < change.item() < 1, "the adapter can be seen, and does not drown the base"
