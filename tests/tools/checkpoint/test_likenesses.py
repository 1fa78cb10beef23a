"""Likenesses of every family have the tensors of transformers' networks, and a tokenizer with their ids.

Mixtures of experts are compared with the recorded checkpoints.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tools.checkpoint.likeness import LIKENESSES, Likeness, config_from_likeness
from tools.checkpoint.tensors import tensors_from_dimensions
from tools.checkpoint.tokenizer import BOS, EOS, tokenizer_from_likeness
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from lopa.export.checkpoint.config import config_from_checkpoint
from lopa.export.checkpoint.tensors import tensors_from_checkpoint
from lopa.export.families.family import QWEN2_OUTER, QWEN3_LAYER

# Published parameter counts: LLaDA 8.02 billion, three of Qwen2.5, and Qwen3-1.7B with an untied head for SDAR.
# Mixtures of experts: as in the table of sizes, and Qwen3-30B-A3B for SDAR.
PARAMETERS = {
    "dream-7b": 7_615_616_512,
    "diffucoder-7b": 7_615_616_512,
    "dream-0.5b": 494_032_768 + 151936 * 896,  # with an untied head
    "llada-8b": 8_015_581_184,
    "fast-dllm-v2-1.5b": 1_543_714_304,
    "sdar-1.7b": 2_031_739_904,
    "wedlm-7b": 7_615_616_512,
}
SPARSE_PARAMETERS = {"llada2-mini": 16.3e9, "sdar-30b-a3b": 30.5e9, "llada-moe-7b": 7.36e9}
RECORDED = Path(__file__).parents[2] / "reference" / "moe"
DENSE = [name for name, likeness in LIKENESSES.items() if likeness.dimensions.moe is None]
SPARSE = [name for name in LIKENESSES if name not in DENSE]


def _network(likeness: Likeness) -> Any:
    """Return the transformers network with the likeness's layers, without weights."""
    sizes = likeness.dimensions
    settings = {
        "vocab_size": sizes.vocab_size,
        "hidden_size": sizes.hidden_size,
        "intermediate_size": sizes.intermediate_size,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_size,
        "max_position_embeddings": sizes.max_positions,
        "rms_norm_eps": sizes.rms_norm_eps,
        "rope_theta": sizes.rope_theta,
        "tie_word_embeddings": likeness.tied,
    }
    if sizes.qk_norm:
        return Qwen3ForCausalLM(Qwen3Config(**settings))
    return Qwen2ForCausalLM(Qwen2Config(**settings)) if sizes.qkv_bias else LlamaForCausalLM(LlamaConfig(**settings))


def _names_of_transformers(likeness: Likeness) -> dict[str, str]:
    """Return transformers' tensor names by checkpoint name."""
    architecture = likeness.architecture
    names = {name: QWEN2_OUTER[ours] for ours, name in architecture.outer_names.items()}
    for layer in range(likeness.dimensions.layers):
        prefix = architecture.layer_prefix.format(layer=layer)
        for ours, name in architecture.layer_names.items():
            names[prefix + name] = f"model.layers.{layer}.{QWEN3_LAYER[ours]}"
    return names


@pytest.mark.parametrize("name", DENSE)
def test_checkpoints_have_the_tensors_of_the_network(name: str) -> None:
    likeness = LIKENESSES[name]
    tensors = tensors_from_dimensions(likeness.dimensions, likeness.architecture, tied=likeness.tied)
    with torch.device("meta"):
        model = _network(likeness)
    names = _names_of_transformers(likeness)
    expected = {key: tuple(value.shape) for key, value in model.named_parameters()}
    assert {names[tensor.name]: tensor.shape for tensor in tensors} == expected
    if name in PARAMETERS:
        assert sum(tensor.items for tensor in tensors) == PARAMETERS[name]


@pytest.mark.parametrize("name", SPARSE)
def test_checkpoints_have_the_tensors_of_the_recorded_ones(name: str) -> None:
    """Compare names and shapes with a published-format checkpoint, whose sizes the likeness gets."""
    likeness = LIKENESSES[name]
    folder = RECORDED / likeness.family.replace("llada2-moe", "llada2").replace("-", "_")
    sizes = config_from_checkpoint(folder).dimensions
    made = {each.name: each.shape for each in tensors_from_dimensions(sizes, likeness.architecture)}
    assert made == {each: tensor.shape for each, tensor in tensors_from_checkpoint(folder).items()}
    recorded = json.loads((folder / "config.json").read_text())
    written = config_from_likeness(replace(likeness, dimensions=sizes))
    same = ("architectures", "model_type", "hidden_size", "num_experts", "num_experts_per_tok", "num_hidden_layers")
    assert {each: written[each] for each in same} == {each: recorded[each] for each in same}
    parameters = sum(each.items for each in tensors_from_dimensions(likeness.dimensions, likeness.architecture))
    assert parameters == pytest.approx(SPARSE_PARAMETERS[name], rel=0.005)


@pytest.mark.parametrize("name", LIKENESSES)
def test_ids_are_within_the_vocabulary(name: str) -> None:
    likeness = LIKENESSES[name]
    tokenizer = Tokenizer.from_str(json.dumps(tokenizer_from_likeness(likeness)))
    ids = tokenizer.get_vocab(with_added_tokens=True)
    assert 300 < len(ids) < 1000
    assert len(set(ids.values())) == len(ids)
    assert min(ids.values()) >= 0
    assert max(ids.values()) < likeness.dimensions.vocab_size
    assert (ids[likeness.mask_text], ids[EOS], ids.get(BOS)) == (likeness.mask, likeness.eos, likeness.bos)
    assert {likeness.mask, likeness.eos, *likeness.ends} <= tokenizer.get_added_tokens_decoder().keys()
