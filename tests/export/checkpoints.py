"""Small checkpoints with random weights (Dream by default), ways to damage them, and exports that must fail."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models

from lopa.cli.main import main
from lopa.export.checkpoint.tensors import INDEX_NAME, SINGLE_NAME
from lopa.export.source import ExportSource
from lopa.export.weights.plan import tensor_records_from_plan
from lopa.export.weights.writer import write_weights

CONFIG: dict[str, Any] = {
    "architectures": ["DreamModel"],
    "model_type": "Dream",
    "bos_token_id": 1,
    "eos_token_id": 0,
    "pad_token_id": 0,
    "mask_token_id": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rope_scaling": None,
    "sliding_window": None,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
    "vocab_size": 24,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}
ONE_LAYER = {"num_hidden_layers": 1, "vocab_size": 512}
"""Changes for tests that export one layer of any size. Tests that share a size share its trace."""
HALF_OF_TESTS = {"num_hidden_layers": 3, "intermediate_size": 64}
"""Changes for tests that export float16 with logits, and three stages with an inner one. They share their traces."""
SPECIAL = {"<|end|>": 0, "<|begin|>": 1, "<|mask|>": 2}
TOKENIZER_CONFIG = {"bos_token": "<|begin|>", "eos_token": "<|end|>", "pad_token": "<|end|>", "mask_token": "<|mask|>"}


def small_checkpoint(folder: Path, *, seed: int = 0, changes: Mapping[str, Any] | None = None) -> Path:
    """Write a complete checkpoint to `folder`, with `changes` to its config.json. Return the folder."""
    config = {**CONFIG, **(changes or {})}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(random_weights(config, seed), folder / SINGLE_NAME)
    vocabulary = {**SPECIAL, **{f"w{i}": i for i in range(len(SPECIAL), config["vocab_size"])}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<|end|>"))
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG))
    return folder


def random_weights(config: Mapping[str, Any], seed: int) -> dict[str, torch.Tensor]:
    """Return every tensor of a checkpoint in float32, under transformers' names. `config` selects biases and norms."""
    generator = torch.Generator().manual_seed(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim", hidden // config["num_attention_heads"])
    queries, keys = head * config["num_attention_heads"], head * config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        shapes |= {
            f"{layer}.input_layernorm.weight": (hidden,),
            f"{layer}.post_attention_layernorm.weight": (hidden,),
            f"{layer}.self_attn.q_proj.weight": (queries, hidden),
            f"{layer}.self_attn.q_proj.bias": (queries,),
            f"{layer}.self_attn.k_proj.weight": (keys, hidden),
            f"{layer}.self_attn.k_proj.bias": (keys,),
            f"{layer}.self_attn.v_proj.weight": (keys, hidden),
            f"{layer}.self_attn.v_proj.bias": (keys,),
            f"{layer}.self_attn.q_norm.weight": (head,),
            f"{layer}.self_attn.k_norm.weight": (head,),
            f"{layer}.self_attn.o_proj.weight": (hidden, queries),
            f"{layer}.mlp.gate_proj.weight": (inner, hidden),
            f"{layer}.mlp.up_proj.weight": (inner, hidden),
            f"{layer}.mlp.down_proj.weight": (hidden, inner),
        }
    absent = ("q_norm.weight", "k_norm.weight") if not config.get("qk_norm") else ()
    absent += ("proj.bias",) if not config.get("attention_bias", True) else ()
    present = {name: shape for name, shape in shapes.items() if not name.endswith(absent)}
    return {name: torch.randn(shape, generator=generator) / 4 for name, shape in present.items()}


def tensors_of(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Return all tensors of the safetensors files."""
    return {name: tensor for path in checkpoint.glob("*.safetensors") for name, tensor in load_file(path).items()}


def written(source: ExportSource, folder: Path) -> dict[str, np.ndarray]:
    """Return the float32 tensors that an export writes, by their names in the bundle."""
    records = tensor_records_from_plan(source.planned, "float32")
    write_weights(folder / "data", source.planned, records, source.stored, source.adapter, lambda _done: None)
    data = (folder / "data").read_bytes()
    (folder / "data").unlink()
    return {
        name: np.frombuffer(data, np.float32, each.length // 4, each.offset).reshape(each.shape)
        for name, each in records.items()
    }


def edit_config(checkpoint: Path, **changes: Any) -> None:
    """Change entries of config.json; None writes null."""
    path = checkpoint / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(checkpoint: Path, changes: Mapping[str, torch.Tensor | None]) -> None:
    """Replace or add tensors of the single file; None removes one."""
    path = checkpoint / SINGLE_NAME
    tensors = load_file(path)
    for name, value in changes.items():
        if value is None:
            del tensors[name]
        else:
            tensors[name] = value
    save_file(tensors, path, {"format": "pt"})


def enlarge_vocabulary(checkpoint: Path, rows: int) -> None:
    """Give embedding and head `rows` rows of zeros, in a sparse file that takes no disk space."""
    tensors = load_file(checkpoint / SINGLE_NAME)
    entries: dict[str, Any] = {}
    end = 0
    for name, tensor in sorted(tensors.items()):
        shape = [rows, tensor.shape[1]] if len(tensor) == CONFIG["vocab_size"] else list(tensor.shape)
        start, end = end, end + 4 * math.prod(shape)
        entries[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    header = json.dumps(entries).encode()
    with (checkpoint / SINGLE_NAME).open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + end)


def shard(checkpoint: Path, *, count: int = 3) -> list[Path]:
    """Turn the single file into `count` shards with an index. Return their paths."""
    single = checkpoint / SINGLE_NAME
    tensors = load_file(single)
    single.unlink()
    names = [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
    weight_map = {name: names[i % count] for i, name in enumerate(sorted(tensors))}
    for file in names:
        save_file({name: tensors[name] for name, home in weight_map.items() if home == file}, checkpoint / file)
    (checkpoint / INDEX_NAME).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return [checkpoint / file for file in names]


def failed_export(capsys: pytest.CaptureFixture[str], checkpoint: Path, *arguments: str | Path) -> str:
    """Run `lopa-export onnx`, check that it fails as bad input and leaves nothing behind. Return its message."""
    place = checkpoint.parent / "bundles"
    place.mkdir(exist_ok=True)
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["onnx", str(checkpoint), "-o", str(place / "bundle"), *map(str, arguments)])
    printed = capsys.readouterr()
    assert ended.value.code == 2
    assert "Traceback" not in printed.err
    assert "expected:" in printed.err
    assert "what to do:" in printed.err
    assert list(place.iterdir()) == []
    return printed.err
