"""GGUF files are read back according to the format's description: settings, names, axes, values."""

import io
import struct
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from tests.tools.miniature import MINIATURE, MINIATURES
from tools.checkpoint.make import checkpoint_from_likeness
from tools.peers.gguf_file import (
    ARCHITECTURES,
    F32,
    KINDS,
    gguf_name,
    matrix_bytes,
    settings_from_dimensions,
    tensor_type,
    write_gguf_of_checkpoint,
    write_head,
    write_tensor,
)

from lopa.export.checkpoint.tensors import tensors_from_checkpoint
from lopa.export.source import source_from_checkpoint
from lopa.runtime.errors import BadInputError

ALIGNED = 32
NO_PROGRAM = Path("nothing")
"""float32 files need no quantizer."""


def read_gguf(file: IO[bytes]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read a file as described in https://github.com/ggml-org/ggml/blob/master/docs/gguf.md."""

    def number(form: str) -> Any:
        return struct.unpack(f"<{form}", file.read(struct.calcsize(f"<{form}")))[0]

    def text() -> str:
        return file.read(number("Q")).decode()

    assert file.read(4) == b"GGUF"
    assert number("I") == 3
    tensors, entries = number("Q"), number("Q")
    settings = {}
    for _ in range(entries):
        name, kind = text(), number("I")
        settings[name] = text() if kind == 8 else number({4: "I", 6: "f", 7: "?"}[kind])
    places = {}
    for _ in range(tensors):
        name = text()
        axes = [number("Q") for _ in range(number("I"))]
        assert number("I") == 0  # float32
        places[name] = axes[::-1], number("Q")
    start = -(-file.tell() // ALIGNED) * ALIGNED
    found = {}
    for name, (shape, offset) in places.items():
        assert offset % ALIGNED == 0
        file.seek(start + offset)
        found[name] = np.frombuffer(file.read(4 * int(np.prod(shape))), np.float32).reshape(shape)
    return settings, found


def test_tensors_and_settings_round_trip() -> None:
    rng = np.random.default_rng(0)
    tensors = {name: rng.standard_normal(shape, np.float32) for name, shape in (("a", (3,)), ("b.weight", (5, 7)))}
    file = io.BytesIO()
    settings: dict[str, str | int | float] = {
        "general.architecture": "qwen2",
        "qwen2.block_count": 3,
        "qwen2.rope.freq_base": 0.5,
    }
    write_head(file, settings, {name: each.shape for name, each in tensors.items()}, dict.fromkeys(tensors, F32))
    for each in tensors.values():
        write_tensor(file, each, F32, NO_PROGRAM)
    assert len(file.getvalue()) % ALIGNED == 0
    file.seek(0)
    read, found = read_gguf(file)
    assert read == settings
    for name, each in tensors.items():
        np.testing.assert_array_equal(found[name], each)


def test_a_tensor_of_another_size_is_an_error() -> None:
    with pytest.raises(ValueError, match="wrote 48 bytes"):
        write_tensor(io.BytesIO(), np.ones((2, 3), np.float64), F32, NO_PROGRAM)


def test_types_are_those_of_llama_cpp() -> None:
    assert tensor_type("blk.0.attn_q.bias", (64,), "q4_0") is F32
    assert tensor_type("token_embd.weight", (640, 64), "q4_0").name == "q4_0"
    assert tensor_type("output.weight", (640, 64), "q4_0").name == "q8_0"  # q6_k has blocks of 256
    assert tensor_type("output.weight", (640, 512), "q4_0").name == "q6_k"
    assert tensor_type("output.weight", (640, 512), "q8_0").name == "q8_0"
    assert [KINDS[kind].size((2, 64)) for kind in ("f32", "q8_0", "q4_0")] == [512, 136, 72]


def test_bytes_of_matrices_are_the_tensors_without_the_embedding(tmp_path: Path) -> None:
    checkpoint_from_likeness(MINIATURE, tmp_path / "checkpoint")
    write_gguf_of_checkpoint(tmp_path / "checkpoint", tmp_path / "model.gguf", "f32", NO_PROGRAM)
    with (tmp_path / "model.gguf").open("rb") as file:
        _, found = read_gguf(file)
    matrices = [each for name, each in found.items() if each.ndim == 2 and name != "token_embd.weight"]
    assert matrix_bytes(MINIATURE.dimensions, "f32") == sum(each.nbytes for each in matrices)


def test_a_checkpoint_has_the_tensors_of_torch(tmp_path: Path) -> None:
    checkpoint_from_likeness(MINIATURE, tmp_path / "checkpoint")
    write_gguf_of_checkpoint(tmp_path / "checkpoint", tmp_path / "model.gguf", "f32", NO_PROGRAM)
    with (tmp_path / "model.gguf").open("rb") as file:
        settings, found = read_gguf(file)
    assert settings["qwen2.attention.head_count_kv"] == MINIATURE.dimensions.kv_heads
    assert settings["qwen2.rope.freq_base"] == MINIATURE.dimensions.rope_theta
    assert settings["tokenizer.ggml.model"] == "no_vocab"
    assert settings["general.architecture"] == "qwen2"
    assert settings["dream.block_count"] == MINIATURE.dimensions.layers  # read with the other architecture
    source = source_from_checkpoint(tmp_path / "checkpoint", None)
    expected = {each.name: source.stored[each.source].read().float() for each in source.planned}
    assert set(found) == {gguf_name(name) for name in expected}
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found[gguf_name(name)], tensor.numpy())


def test_experts_are_stacked_and_the_rest_is_as_published(tmp_path: Path) -> None:
    likeness = MINIATURES["llada2-moe"]
    checkpoint_from_likeness(likeness, tmp_path / "checkpoint")
    write_gguf_of_checkpoint(tmp_path / "checkpoint", tmp_path / "model.gguf", "f32", NO_PROGRAM)
    with (tmp_path / "model.gguf").open("rb") as file:
        settings, found = read_gguf(file)
    stored = {
        name: each.read().float().numpy() for name, each in tensors_from_checkpoint(tmp_path / "checkpoint").items()
    }
    assert sum(each.size for each in found.values()) == sum(each.size for each in stored.values())
    layer = "model.layers.1."
    for theirs, name in (
        ("attn_qkv.weight", "attention.query_key_value.weight"),
        ("attn_k_norm.weight", "attention.key_layernorm.weight"),
        ("ffn_gate_inp.weight", "mlp.gate.weight"),
        ("exp_probs_b.bias", "mlp.gate.expert_bias"),
        ("ffn_up_shexp.weight", "mlp.shared_experts.up_proj.weight"),
    ):
        np.testing.assert_array_equal(found[f"blk.1.{theirs}"], stored[layer + name])
    for part in ("gate", "up", "down"):
        experts = [stored[f"{layer}mlp.experts.{expert}.{part}_proj.weight"] for expert in range(8)]
        np.testing.assert_array_equal(found[f"blk.1.ffn_{part}_exps.weight"], np.stack(experts))
    assert settings["general.architecture"] == "bailingmoe2"
    assert settings["bailingmoe2.expert_weights_norm"] is True
    assert settings["bailingmoe2.rope.dimension_count"] == 12
    assert (settings["bailingmoe2.expert_group_count"], settings["bailingmoe2.expert_group_used_count"]) == (4, 2)
    matrices = [name for name, each in found.items() if each.ndim > 1 and name != "token_embd.weight"]
    assert matrix_bytes(likeness.dimensions, "f32") == sum(found[name].nbytes for name in matrices)
    unused = sum(found[name].nbytes for name in matrices if "_exps" in name) * 3 // 4
    assert (
        matrix_bytes(likeness.dimensions, "f32", touched=0.25) == sum(found[name].nbytes for name in matrices) - unused
    )


def test_routers_are_not_quantized() -> None:
    assert tensor_type("blk.0.ffn_gate_inp.weight", (8, 64), "q4_0") is F32
    assert tensor_type("blk.0.ffn_gate_exps.weight", (8, 32, 64), "q4_0").name == "q4_0"


def test_experts_that_llama_cpp_routes_differently_are_rejected(tmp_path: Path) -> None:
    checkpoint_from_likeness(MINIATURES["llada-moe"], tmp_path / "checkpoint")
    with pytest.raises(BadInputError, match="llada-moe"):
        write_gguf_of_checkpoint(tmp_path / "checkpoint", tmp_path / "model.gguf", "f32", NO_PROGRAM)
    assert not (tmp_path / "model.gguf").exists()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("layers.11.attention.output.weight", "blk.11.attn_output.weight"),
        ("layers.0.attention.query.bias", "blk.0.attn_q.bias"),
        ("layers.2.mlp_norm.weight", "blk.2.ffn_norm.weight"),
        ("embedding.weight", "token_embd.weight"),
        ("head.weight", "output.weight"),
    ],
)
def test_names(ours: str, theirs: str) -> None:
    assert gguf_name(ours) == theirs


@pytest.mark.parametrize("name", ["layers.0.attention.query_norm.weight", "other.weight"])
def test_tensors_that_qwen2_lacks_are_rejected(name: str) -> None:
    with pytest.raises(BadInputError, match=name):
        gguf_name(name)


def test_integers_are_not_written_as_floats() -> None:
    """llama.cpp rejects a setting of the other type."""
    settings = settings_from_dimensions(MINIATURE.dimensions)
    floats = {name for name, value in settings.items() if isinstance(value, float)}
    names = ("attention.layer_norm_rms_epsilon", "rope.freq_base")
    assert floats == {f"{architecture}.{name}" for architecture in ARCHITECTURES for name in names}
