"""A float32 checkpoint as GGUF 3, llama.cpp's file format, for its qwen2 architecture, which has Dream's layers.

llama.cpp's dream architecture would also fit but has no cache. The file has no tokenizer, since tokens are passed as
ids.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from lopa.bench.speed.eager_model import merged_weight
from lopa.export.source import source_from_checkpoint
from lopa.runtime.bundle.manifest import ModelDimensions
from lopa.runtime.errors import BadInputError

Float32 = npt.NDArray[np.float32]

_MAGIC, _VERSION = b"GGUF", 3
_ALIGNMENT = 32
_UINT32, _FLOAT32, _STRING = 4, 6, 8
"""Type codes of settings."""
_TENSOR_FLOAT32 = 0
_OUTER = {
    "embedding.weight": "token_embd.weight",
    "final_norm.weight": "output_norm.weight",
    "head.weight": "output.weight",
}
_LAYER = {
    "attention_norm": "attn_norm",
    "attention.query": "attn_q",
    "attention.key": "attn_k",
    "attention.value": "attn_v",
    "attention.output": "attn_output",
    "mlp_norm": "ffn_norm",
    "mlp.gate": "ffn_gate",
    "mlp.up": "ffn_up",
    "mlp.down": "ffn_down",
}
_ARCHITECTURE = "qwen2"


def write_gguf_of_checkpoint(checkpoint: Path, path: Path) -> None:
    """Write the weights of the folder `checkpoint` to `path`.

    Raises BadInputError for an unreadable checkpoint, and for layers that qwen2 lacks.
    """
    source = source_from_checkpoint(checkpoint, None)
    named = {gguf_name(each.name): each for each in source.planned}
    with path.open("wb") as file:
        shapes = {name: each.source_shape for name, each in named.items()}
        write_gguf(
            file,
            settings_from_dimensions(source.config.dimensions),
            shapes,
            (merged_weight(source, each, "cpu").numpy() for each in named.values()),
        )


def gguf_name(name: str) -> str:
    """Return llama.cpp's name of a bundle's tensor such as layers.3.mlp.up.weight.

    Raises BadInputError for a tensor that qwen2 lacks.
    """
    if name in _OUTER:
        return _OUTER[name]
    parts = name.split(".")
    module, kind = ".".join(parts[2:-1]), parts[-1]
    if parts[0] != "layers" or module not in _LAYER:
        raise BadInputError(
            f"unsupported tensor {name}",
            expected="the tensors of Dream, which llama.cpp's qwen2 shares",
            remedy="use a likeness of Dream",
        )
    return f"blk.{parts[1]}.{_LAYER[module]}.{kind}"


def settings_from_dimensions(sizes: ModelDimensions) -> dict[str, str | int | float]:
    """Return the settings of a file."""
    about: dict[str, int | float] = {
        "block_count": sizes.layers,
        "context_length": sizes.max_positions,
        "embedding_length": sizes.hidden_size,
        "feed_forward_length": sizes.intermediate_size,
        "attention.head_count": sizes.heads,
        "attention.head_count_kv": sizes.kv_heads,
        "attention.key_length": sizes.head_size,
        "attention.value_length": sizes.head_size,
        "attention.layer_norm_rms_epsilon": float(sizes.rms_norm_eps),
        "rope.dimension_count": sizes.head_size,
        "rope.freq_base": float(sizes.rope_theta),
        "vocab_size": sizes.vocab_size,
    }
    return {
        "general.architecture": _ARCHITECTURE,
        "tokenizer.ggml.model": "no_vocab",
        **{f"{_ARCHITECTURE}.{name}": value for name, value in about.items()},
    }


def write_gguf(
    file: IO[bytes],
    settings: Mapping[str, str | int | float],
    shapes: Mapping[str, Sequence[int]],
    tensors: Iterable[Float32],
) -> None:
    """Write settings, then the tensors of `shapes` in order. Matrices are [outputs, inputs]."""
    head = _MAGIC + struct.pack("<IQQ", _VERSION, len(shapes), len(settings))
    head += b"".join(_string(name) + _value(value) for name, value in settings.items())
    head += b"".join(_records(shapes))
    file.write(_padded(head))
    for (name, shape), tensor in zip(shapes.items(), tensors, strict=True):
        if tensor.shape != tuple(shape) or tensor.dtype != np.float32:
            raise ValueError(f"received {name} as {tensor.dtype} {tensor.shape}, expected float32 {tuple(shape)}")
        file.write(_padded(tensor.tobytes()))


def _records(shapes: Mapping[str, Sequence[int]]) -> Iterator[bytes]:
    """Yield name, axes (last one first), type and offset of every tensor."""
    offset = 0
    for name, shape in shapes.items():
        axes = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        yield _string(name) + axes + struct.pack("<IQ", _TENSOR_FLOAT32, offset)
        offset += _aligned_size(4 * int(np.prod(shape)))


def _value(value: str | int | float) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    return struct.pack("<II", _UINT32, value) if isinstance(value, int) else struct.pack("<If", _FLOAT32, value)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _aligned_size(length: int) -> int:
    return -(-length // _ALIGNMENT) * _ALIGNMENT


def _padded(data: bytes) -> bytes:
    return data.ljust(_aligned_size(len(data)), b"\0")
