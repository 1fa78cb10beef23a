"""A checkpoint as GGUF 3, llama.cpp's file format, for its architectures qwen2 and dream, which have the same layers.

The file names qwen2 and has the settings of both, so that a reader can override the name. It has no tokenizer, since
tokens are passed as ids. Matrices are quantized by llama.cpp while they are written, one at a time, in the types that
its own quantizer chooses.
"""

import math
import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from lopa.bench.speed.eager_model import check_dense, merged_weight
from lopa.export.source import source_from_checkpoint
from lopa.runtime.bundle.manifest import ModelDimensions
from lopa.runtime.bundle.network import network_from_dimensions
from lopa.runtime.errors import BadInputError

Float32 = npt.NDArray[np.float32]

_MAGIC, _VERSION = b"GGUF", 3
_ALIGNMENT = 32
_UINT32, _FLOAT32, _STRING = 4, 6, 8
"""Type codes of settings."""
_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"
_OUTER = {
    "embedding.weight": _EMBEDDING,
    "final_norm.weight": "output_norm.weight",
    "head.weight": _HEAD,
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
ARCHITECTURES = ("qwen2", "dream")
"""Architectures that a file can be read as. The file names the first."""


@dataclass(frozen=True)
class TensorType:
    """A type of stored numbers."""

    name: str
    code: int
    block: int
    """Numbers per block. A row consists of whole blocks."""
    block_bytes: int

    def size(self, shape: Sequence[int]) -> int:
        """Return the bytes of a tensor."""
        return math.prod(shape) // self.block * self.block_bytes


F32 = TensorType("f32", 0, 1, 4)
_Q4_0 = TensorType("q4_0", 2, 32, 18)
_Q8_0 = TensorType("q8_0", 8, 32, 34)
_Q6_K = TensorType("q6_k", 14, 256, 210)
KINDS = {"f32": F32, "q8_0": _Q8_0, "q4_0": _Q4_0}
"""Type of most matrices by kind of file."""


def write_gguf_of_checkpoint(checkpoint: Path, path: Path, kind: str, llama_side: Path) -> None:
    """Write the weights of the folder `checkpoint` to `path`. The program `llama_side` quantizes them.

    Raises BadInputError for an unreadable checkpoint, and for layers that qwen2 lacks. Raises
    subprocess.CalledProcessError if the program fails.
    """
    source = source_from_checkpoint(checkpoint, None)
    check_dense(source)
    named = {gguf_name(each.name): each for each in source.planned}
    shapes = {name: each.parts[0].source_shape for name, each in named.items()}
    types = {name: tensor_type(name, shape, kind) for name, shape in shapes.items()}
    with path.open("wb") as file:
        write_head(file, settings_from_dimensions(source.config.dimensions), shapes, types)
        for name, each in named.items():
            # Only one tensor is in memory at a time.
            write_tensor(file, merged_weight(source, each, "cpu").numpy(), types[name], llama_side)


def tensor_type(name: str, shape: Sequence[int], kind: str) -> TensorType:
    """Return the type of a tensor in a file of `kind`, a key of KINDS, as llama.cpp's quantizer chooses it."""
    if len(shape) == 1:
        return F32
    if kind == "q4_0" and name == _HEAD:
        return _Q8_0 if shape[-1] % _Q6_K.block else _Q6_K
    return KINDS[kind]


def matrix_bytes(sizes: ModelDimensions, kind: str) -> int:
    """Return the bytes of all matrices in a file of `kind`, without the embedding, which a forward reads little of."""
    found = 0
    for name, tensor in network_from_dimensions(sizes).tensors.items():
        if tensor.role == "matrix":
            shape = tensor.shape[::-1]  # GGUF stores [outputs, inputs]
            found += tensor_type(gguf_name(name), shape, kind).size(shape)
    return found


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
        "general.architecture": ARCHITECTURES[0],
        "tokenizer.ggml.model": "no_vocab",
        **{f"{architecture}.{name}": value for architecture in ARCHITECTURES for name, value in about.items()},
    }


def write_head(
    file: IO[bytes],
    settings: Mapping[str, str | int | float],
    shapes: Mapping[str, Sequence[int]],
    types: Mapping[str, TensorType],
) -> None:
    """Write the settings and the list of tensors, which must follow in this order. Matrices are [outputs, inputs]."""
    head = _MAGIC + struct.pack("<IQQ", _VERSION, len(shapes), len(settings))
    head += b"".join(_string(name) + _value(value) for name, value in settings.items())
    head += b"".join(_records(shapes, types))
    file.write(_padded(head))


def write_tensor(file: IO[bytes], tensor: Float32, kind: TensorType, llama_side: Path) -> None:
    """Write the float32 `tensor` as `kind`, quantized by `llama_side` unless that is float32.

    Raises subprocess.CalledProcessError if the program fails.
    """
    start = file.tell()
    if kind == F32:
        file.write(tensor.tobytes())
    else:
        file.flush()  # the program continues at this position
        command = [str(llama_side), "quantize", kind.name, str(tensor.shape[-1])]
        subprocess.run(command, input=tensor.data.cast("B"), stdout=file, check=True)
        file.seek(0, 2)
    written = file.tell() - start
    if written != kind.size(tensor.shape):
        raise ValueError(f"wrote {written} bytes of {tensor.shape} as {kind.name}, expected {kind.size(tensor.shape)}")
    file.write(bytes(_aligned_size(written) - written))


def _records(shapes: Mapping[str, Sequence[int]], types: Mapping[str, TensorType]) -> Iterator[bytes]:
    """Yield name, axes (last one first), type and offset of every tensor."""
    offset = 0
    for name, shape in shapes.items():
        axes = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        yield _string(name) + axes + struct.pack("<IQ", types[name].code, offset)
        offset += _aligned_size(types[name].size(shape))


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
