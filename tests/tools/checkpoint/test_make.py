"""Miniatures of published architectures are created, read by transformers and PEFT, exported and run."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors import safe_open
from safetensors.torch import load_file
from tests.runtime.sequential import sequential
from tests.tools.miniature import MINIATURE
from tools.checkpoint.likeness import LIKENESSES, Likeness, config_from_likeness
from tools.checkpoint.make import checkpoint_from_likeness
from tools.checkpoint.tensors import tensors_from_dimensions
from transformers import Qwen2Config, Qwen2ForCausalLM

from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.export.checkpoint.tensors import tensors_from_checkpoint
from lopa.export.source import source_from_checkpoint
from lopa.runtime.contract import Statistics, WindowBatch
from lopa.runtime.sessions.session import open_session

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


@pytest.mark.parametrize(
    ("name", "parameters"),
    # The published number of Qwen2.5-7B. 0.5B has an additional untied head besides the published 494,032,768.
    [("dream-7b", 7_615_616_512), ("diffucoder-7b", 7_615_616_512), ("dream-0.5b", 494_032_768 + 151936 * 896)],
)
def test_sizes_of_the_published_architectures(name: str, parameters: int) -> None:
    likeness = LIKENESSES[name]
    tensors = tensors_from_dimensions(likeness.dimensions)
    assert sum(tensor.items for tensor in tensors) == parameters
    with torch.device("meta"):
        model = Qwen2ForCausalLM(_qwen2_config(config_from_likeness(likeness)))
    assert {tensor.name: tensor.shape for tensor in tensors} == {
        key: tuple(value.shape) for key, value in model.state_dict().items()
    }
    assert max(likeness.mask, likeness.eos, likeness.bos) < likeness.dimensions.vocab_size


def _batch(rng: np.random.Generator, prompt: int, masks: int) -> WindowBatch:
    width = prompt + masks
    ids = np.concatenate([rng.integers(0, 400, prompt), np.full(masks, MINIATURE.mask)])
    return WindowBatch(
        requests=(0,),
        input_ids=ids[None, None],
        position_ids=np.arange(width)[None, None],
        window_mask=np.ones((1, 1, width, width), np.bool_),
        logits_index=np.arange(width)[None, None],
        temperature=np.ones(1, np.float32),
    )


def _statistics(checkpoint: Path, bundle: Path, batch: WindowBatch, **settings: Any) -> Statistics:
    session = open_session(bundle_from_checkpoint(checkpoint, bundle, **settings), "cpu", threads=1)
    try:
        return sequential(session).forward(batch)
    finally:
        session.close()


def test_a_miniature_exports_and_its_statistics_vary(tmp_path: Path) -> None:
    checkpoint = _made(tmp_path / "checkpoint")
    batch = _batch(np.random.default_rng(3), 24, 40)
    base = _statistics(checkpoint, tmp_path / "base", batch)
    assert np.isfinite(base.topk_logprobs).all()
    assert np.isfinite(base.entropy).all()
    best = base.topk_ids[0, 0, :, 0]
    assert len(set(best[:24])) >= 8
    assert len(set(best[24:])) >= 3, "rows of masks must not all predict the same"
    gaps = base.topk_logprobs[..., 0] - base.topk_logprobs[..., 1]
    assert np.median(gaps) > 0.2
    half = _statistics(checkpoint, tmp_path / "half", batch, dtype="float16")
    np.testing.assert_allclose(half.topk_logprobs[..., 0], base.topk_logprobs[..., 0], rtol=0, atol=0.1)
    clear = gaps > 0.2
    np.testing.assert_array_equal(half.topk_ids[..., 0][clear], base.topk_ids[..., 0][clear])


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
