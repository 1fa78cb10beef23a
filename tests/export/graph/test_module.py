"""The traced module against an implementation that is not ours: transformers' Qwen2, onto which Dream's weights map."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.export.checkpoints import CONFIG, small_checkpoint
from transformers import Qwen2Config, Qwen2ForCausalLM

from lopa.export.graph.module import ContractForward
from lopa.export.source import source_from_checkpoint
from lopa.export.weights.plan import PlannedWeight
from lopa.runtime.contract import TILE

NAMES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


def _pair(folder: Path) -> tuple[ContractForward, Qwen2ForCausalLM]:
    checkpoint = small_checkpoint(folder)
    source = source_from_checkpoint(checkpoint, None)
    base = load_file(checkpoint / "model.safetensors")
    module = ContractForward(source.config.dimensions, dtype=torch.float32, with_logits=True).eval()
    module.load_state_dict({weight.name: _of_base(weight, base) for weight in source.planned})
    settings = {
        name: CONFIG[name] for name in (*NAMES, "num_key_value_heads", "rms_norm_eps", "max_position_embeddings")
    }
    rope = {"rope_type": "default", "rope_theta": CONFIG["rope_theta"]}
    oracle = Qwen2ForCausalLM(Qwen2Config(**settings, rope_parameters=rope, tie_word_embeddings=False)).eval()
    oracle.load_state_dict(base)
    return module, oracle


def _of_base(weight: PlannedWeight, base: dict[str, torch.Tensor]) -> torch.Tensor:
    return base[weight.source].T if weight.transposed else base[weight.source]


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (2, 3, 11, 7), (3, 1, 6, 20)])
def test_windows_without_prefix(tmp_path: Path, sizes: tuple[int, int, int, int]) -> None:
    r, b, w, q = sizes
    module, oracle = _pair(tmp_path)
    generator = torch.Generator().manual_seed(sum(sizes))
    ids = torch.randint(24, (r, b, w), generator=generator)
    positions = torch.randint(512, (r, b, w), generator=generator)
    mask = (torch.rand((r, b, w, w), generator=generator) < 0.5) | torch.eye(w, dtype=torch.bool)
    index = torch.randint(w, (r, b, q), generator=generator)
    past = [torch.randn((r, 2, TILE, 8), generator=generator) for _ in range(4)]
    hidden_prefix = torch.zeros(r, TILE, dtype=torch.bool)
    with torch.no_grad():
        *_, found = module(ids, positions, mask, hidden_prefix, index, torch.ones(r), past)
        additive = torch.zeros(r * b, 1, w, w).masked_fill(~mask.reshape(r * b, 1, w, w), float("-inf"))
        expected = oracle(
            input_ids=ids.reshape(r * b, w),
            position_ids=positions.reshape(r * b, w),
            attention_mask=additive,
            use_cache=False,
        ).logits
    wanted = expected.reshape(r, b, w, -1).gather(2, index.unsqueeze(-1).expand(-1, -1, -1, 24))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
