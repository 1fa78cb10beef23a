"""Every entry of a family's config.json that gives a size: absent, of another type, out of range."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.tools.miniature import MINIATURES
from tools.checkpoint.likeness import LIKENESSES, config_from_likeness

from lopa.export.checkpoint.config import config_from_checkpoint
from lopa.export.families import FAMILIES
from lopa.runtime.errors import BadInputError

NOT_NUMBERS: list[Any] = [None, "8", 2.5, True, -1, 0, 2**31, 10**30, 1e300, [8], {"a": 8}]
NOT_FLAGS: list[Any] = ["no", 0, 1.0, [False]]
_OF_TRANSFORMERS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "rope_theta",
    "rms_norm_eps",
)
NUMBERS = {
    "dream": _OF_TRANSFORMERS,
    "llada": (
        "vocab_size",
        "embedding_size",
        "d_model",
        "mlp_hidden_size",
        "n_layers",
        "n_heads",
        "n_kv_heads",
        "max_sequence_length",
        "rope_theta",
        "rms_norm_eps",
    ),
    "fast-dllm-v2": (*_OF_TRANSFORMERS, "bd_size"),
    "sdar": (*_OF_TRANSFORMERS, "head_dim", "block_size"),
    "wedlm": (*_OF_TRANSFORMERS, "head_dim"),
    "stable-diffcoder": _OF_TRANSFORMERS,
    "llada2-moe": (
        *(name for name in _OF_TRANSFORMERS if name != "num_key_value_heads"),
        *("head_dim", "num_experts", "num_experts_per_tok", "moe_intermediate_size", "n_group", "topk_group"),
    ),
    "sdar-moe": (
        *(*_OF_TRANSFORMERS, "head_dim", "block_size"),
        *("num_experts", "num_experts_per_tok", "moe_intermediate_size", "decoder_sparse_step"),
    ),
    "llada-moe": (
        *(name for name in _OF_TRANSFORMERS if name != "intermediate_size"),
        *("num_experts_per_tok", "expert_intermediate_size"),
    ),
}
FLAGS = {
    "dream": ("tie_word_embeddings",),
    "llada": ("weight_tying", "include_qkv_bias"),
    "fast-dllm-v2": ("tie_word_embeddings",),
    "sdar": ("tie_word_embeddings",),
    "wedlm": ("tie_word_embeddings", "attention_bias", "qk_norm"),
    "stable-diffcoder": ("tie_word_embeddings",),
    "llada2-moe": ("tie_word_embeddings",),
    "sdar-moe": ("tie_word_embeddings", "norm_topk_prob"),
    "llada-moe": ("tie_word_embeddings", "qk_layernorm"),
}
ABSENT = {
    ("dream", "num_key_value_heads"): ("kv_heads", 4),
    ("fast-dllm-v2", "num_key_value_heads"): ("kv_heads", 4),
    ("sdar", "num_key_value_heads"): ("kv_heads", 4),
    ("wedlm", "num_key_value_heads"): ("kv_heads", 4),
    ("stable-diffcoder", "num_key_value_heads"): ("kv_heads", 4),
    ("sdar-moe", "num_key_value_heads"): ("kv_heads", 4),
    ("llada-moe", "num_key_value_heads"): ("kv_heads", 4),
    ("sdar-moe", "decoder_sparse_step"): ("layers", 2),
    ("wedlm", "head_dim"): ("head_size", 16),
    ("llada", "n_kv_heads"): ("kv_heads", 4),
    ("llada", "embedding_size"): ("vocab_size", 640),
    ("llada", "mlp_hidden_size"): ("intermediate_size", 4 * 64),
}
"""Meaning of absent entries, by family and name. All other entries are required."""
NULL = {each for each in ABSENT if each[1] != "num_key_value_heads"}
"""Entries that may also be null."""


def write_config(folder: Path, family: str, **changes: Any) -> dict[str, Any]:
    """Write the miniature's config.json with changes, without entries changed to `...`. Return its content."""
    content = {**config_from_likeness(MINIATURES[family]), **changes}
    content = {name: value for name, value in content.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(content))
    return content


def test_no_family_is_without_a_miniature() -> None:
    own = {"diffusion-gemma"}  # has trained checkpoints (test_diffusion_gemma.py)
    assert MINIATURES.keys() == NUMBERS.keys() == FLAGS.keys() == FAMILIES.keys() - own


@pytest.mark.parametrize("name", LIKENESSES)
def test_a_likeness_is_read_with_its_own_sizes(tmp_path: Path, name: str) -> None:
    likeness = LIKENESSES[name]
    (tmp_path / "config.json").write_text(json.dumps(config_from_likeness(likeness)))
    config = config_from_checkpoint(tmp_path)
    assert config.family.name == likeness.family
    assert config.dimensions == likeness.dimensions
    assert config.tied_embeddings == likeness.tied
    assert config.token_ids.get("mask") == (likeness.mask if likeness.names_mask else None)


@pytest.mark.parametrize("family", NUMBERS)
def test_numbers(tmp_path: Path, family: str) -> None:
    given = write_config(tmp_path, family)
    config_from_checkpoint(tmp_path)
    for name in NUMBERS[family]:
        for wrong in NOT_NUMBERS:
            if wrong is None and (family, name) in NULL:
                continue
            if name == "rope_theta" and wrong in (2.5, 2**31, 10**30):  # unusual but valid
                continue
            _assert_wrong(tmp_path, family, name, wrong)
        if (family, name) in ABSENT:
            write_config(tmp_path, family, **{name: ...})
            field, value = ABSENT[family, name]
            assert getattr(config_from_checkpoint(tmp_path).dimensions, field) == value
        else:
            assert name in given
            assert "= None" in _assert_wrong(tmp_path, family, name, ...)


def _assert_wrong(folder: Path, family: str, name: str, value: Any) -> str:
    """Check that the value is refused by name, and return what was received."""
    write_config(folder, family, **{name: value})
    with pytest.raises(BadInputError, match=rf"config\.json has {name} = ") as caught:
        config_from_checkpoint(folder)
    assert caught.value.expected
    return caught.value.received


@pytest.mark.parametrize("family", FLAGS)
def test_flags(tmp_path: Path, family: str) -> None:
    for name in FLAGS[family]:
        for wrong in NOT_FLAGS:
            _assert_wrong(tmp_path, family, name, wrong)
        for absent in (None, ...):
            write_config(tmp_path, family, **{name: absent})
            config = config_from_checkpoint(tmp_path)
            if name in ("tie_word_embeddings", "weight_tying"):
                assert config.tied_embeddings is False
            if family == "wedlm":
                assert (config.dimensions.qkv_bias, config.dimensions.qk_norm) == (True, False)


@pytest.mark.parametrize("family", NUMBERS)
def test_token_ids(tmp_path: Path, family: str) -> None:
    for role in ("mask", "eos", "pad", "bos"):
        for wrong in ("8", 2.5, True, -1, 640, [], [[8]], [640]):
            _assert_wrong(tmp_path, family, f"{role}_token_id", wrong)


@pytest.mark.parametrize("family", NUMBERS)
def test_several_ends(tmp_path: Path, family: str) -> None:
    """Check config.json and generation_config.json together; the first id of config.json is eos."""
    write_config(tmp_path, family, eos_token_id=[600, 601])
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [603, 601]}))
    if not FAMILIES[family].more_ends:
        with pytest.raises(BadInputError, match="eos_token_id"):
            config_from_checkpoint(tmp_path)
        write_config(tmp_path, family)
        assert config_from_checkpoint(tmp_path).stops == ()
        return
    config = config_from_checkpoint(tmp_path)
    assert (config.token_ids["eos"], config.stops) == (600, (601, 603))
    write_config(tmp_path, family, eos_token_id=600)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 600}))
    assert config_from_checkpoint(tmp_path).stops == ()
    for wrong in ("8", [640], list(range(65)), {"a": 1}):
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": wrong}))
        with pytest.raises(BadInputError, match=r"generation_config\.json has eos_token_id"):
            config_from_checkpoint(tmp_path)
    (tmp_path / "generation_config.json").write_text("[")
    with pytest.raises(BadInputError, match=r"generation_config\.json"):
        config_from_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("dream", {"vocab_size": 7}, "a whole number from 8 to"),
        ("dream", {"rope_theta": 1e-300}, "rope_theta"),
        ("dream", {"rms_norm_eps": 1e30}, "rms_norm_eps"),
        ("llada", {"n_heads": 5}, "d_model a multiple of n_heads"),
        ("llada", {"n_kv_heads": 3}, "n_heads a multiple of n_kv_heads"),
        ("llada", {"embedding_size": 639}, "a whole number from 640"),
        ("llada", {"mlp_hidden_size": None, "mlp_ratio": 2.5}, "mlp_ratio = 2.5"),
        ("sdar", {"head_dim": 15}, "an even head size"),
        ("sdar", {"num_key_value_heads": 3}, "num_attention_heads a multiple of num_key_value_heads"),
        ("stable-diffcoder", {"num_attention_heads": 5}, "hidden_size a multiple of num_attention_heads"),
    ],
)
def test_sizes_that_do_not_go_together(tmp_path: Path, family: str, changes: dict[str, Any], message: str) -> None:
    write_config(tmp_path, family, **changes)
    with pytest.raises(BadInputError) as caught:
        config_from_checkpoint(tmp_path)
    assert message in f"{caught.value.received} {caught.value.expected}"


def test_an_embedding_with_rows_beyond_the_vocabulary(tmp_path: Path) -> None:
    write_config(tmp_path, "llada", vocab_size=600)
    assert config_from_checkpoint(tmp_path).dimensions.vocab_size == 640


@pytest.mark.parametrize("changes", [{"attention_bias": False, "qk_norm": True}, {"qk_norm": True}])
def test_wedlm_of_qwen3(tmp_path: Path, changes: dict[str, Any]) -> None:
    write_config(tmp_path, "wedlm", **changes)
    sizes = config_from_checkpoint(tmp_path).dimensions
    assert (sizes.qkv_bias, sizes.qk_norm) == ("attention_bias" not in changes, True)
