"""A checkpoint as GGUF 3, llama.cpp's file format, for its architectures qwen2 and dream, which have the same layers.

A dense file names qwen2 and has the settings of both, so that a reader can override the name. LLaDA2 becomes
bailingmoe2, which has the same router and experts. Files have no tokenizer, since tokens are passed as ids. Matrices
are quantized by llama.cpp while they are written, one at a time, in the types that its own quantizer chooses.
"""

import contextlib
import math
import struct
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from lopa.export.source import source_from_checkpoint
from lopa.export.weights.plan import PlannedWeight
from lopa.runtime.bundle.manifest import MixtureOfExperts, ModelDimensions
from lopa.runtime.bundle.network import network_from_dimensions
from lopa.runtime.errors import BadInputError

Float32 = npt.NDArray[np.float32]
Setting = str | int | float | bool

_MAGIC, _VERSION = b"GGUF", 3
_ALIGNMENT = 32
_UINT32, _FLOAT32, _BOOL, _STRING = 4, 6, 7, 8
"""Type codes of settings."""
_ROUTER = "ffn_gate_inp"
_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"
_OUTER = {
    "embedding.weight": _EMBEDDING,
    "final_norm.weight": "output_norm.weight",
    "head.weight": _HEAD,
}
_EXPERTS = {
    "attention.query": "attn_qkv",
    "attention.query_norm": "attn_q_norm",
    "attention.key_norm": "attn_k_norm",
    "mlp.router": "ffn_gate_inp",
    "mlp.experts.gate": "ffn_gate_exps",
    "mlp.experts.up": "ffn_up_exps",
    "mlp.experts.down": "ffn_down_exps",
    "mlp.shared.gate": "ffn_gate_shexp",
    "mlp.shared.up": "ffn_up_shexp",
    "mlp.shared.down": "ffn_down_shexp",
}
"""Further names in bailingmoe2, in which query, key and value are one matrix."""
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
"""Architectures that a dense file can be read as. The file names the first."""
SPARSE_ARCHITECTURES = ("bailingmoe2",)
"""Architecture of Ling 2.0, whose layers LLaDA2 has, apart from causal attention."""
_SIGMOID = 2
"""llama.cpp's number of a router with sigmoid."""


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

    Raises BadInputError for an unreadable checkpoint, and for layers that llama.cpp's architectures lack. Raises
    subprocess.CalledProcessError if the program fails.
    """
    source = source_from_checkpoint(checkpoint, None)
    architectures_of_network(source.config.architecture.name, source.config.dimensions)  # fail before writing
    is_sparse = source.config.dimensions.moe is not None
    named: dict[str, PlannedWeight] = {}
    for each in source.planned:
        if not is_sparse or not each.name.endswith(_IN_QUERY):
            named[gguf_name(each.name, is_sparse=is_sparse)] = each
    shapes = {name: _source_shape(each) for name, each in named.items()}
    types = {name: tensor_type(name, shape, kind) for name, shape in shapes.items()}
    with path.open("wb") as file:
        write_head(file, settings_from_dimensions(source.config.dimensions), shapes, types)
        for name, each in named.items():
            # Only one matrix is in memory at a time.
            matrices = (source.stored[part.source].read().float().numpy() for part in each.parts)
            write_matrices(file, matrices, shapes[name], types[name], llama_side)


def architectures_of_network(name: str, sizes: ModelDimensions) -> tuple[str, ...]:
    """Return the architectures that a file of a network can be read as. The file names the first.

    Raises BadInputError for a mixture of experts that llama.cpp cannot compute in the same way.
    """
    if sizes.moe is None:
        return ARCHITECTURES
    if name != "llada2-moe":
        raise BadInputError(
            f"unsupported architecture {name}",
            expected="the layers of LLaDA2, which llama.cpp's bailingmoe2 shares",
            remedy="use a likeness of LLaDA2, or leave llama.cpp out",
        )
    return SPARSE_ARCHITECTURES


_IN_QUERY = ("attention.key.weight", "attention.value.weight")
"""Matrices in the same tensor as the query's."""


def _source_shape(weight: PlannedWeight) -> tuple[int, ...]:
    """Return the shape in a file, which is the checkpoint's. Experts are stacked."""
    parts = weight.parts
    return (
        (len(parts), *parts[0].source_shape)
        if len(weight.shape) > len(parts[0].source_shape)
        else parts[0].source_shape
    )


def tensor_type(name: str, shape: Sequence[int], kind: str) -> TensorType:
    """Return the type of a tensor in a file of `kind`, a key of KINDS, as llama.cpp's quantizer chooses it."""
    if len(shape) == 1 or _ROUTER in name:
        return F32
    if kind == "q4_0" and name == _HEAD:
        return _Q8_0 if shape[-1] % _Q6_K.block else _Q6_K
    return KINDS[kind]


def matrix_bytes(sizes: ModelDimensions, kind: str, touched: float | None = None) -> int:
    """Return the bytes of all matrices in a file of `kind`, without the embedding, which a forward reads little of.

    Of the experts it counts the share `touched`, or all.
    """
    found = 0.0
    for name, tensor in network_from_dimensions(sizes).tensors.items():
        if tensor.role == "matrix":
            *stacked, inputs, outputs = tensor.shape
            shape = (*stacked, outputs, inputs)  # as GGUF stores it
            share = 1.0 if touched is None or tensor.row_share == 1 else touched
            found += tensor_type(gguf_name(name, is_sparse=sizes.moe is not None), shape, kind).size(shape) * share
    return int(found)


def gguf_name(name: str, *, is_sparse: bool = False) -> str:
    """Return llama.cpp's name of a bundle's tensor such as layers.3.mlp.up.weight.

    Raises BadInputError for a tensor that qwen2 lacks, or bailingmoe2 for a mixture of experts.
    """
    if name in _OUTER:
        return _OUTER[name]
    parts = name.split(".")
    module, kind = ".".join(parts[2:-1]), parts[-1]
    if is_sparse and (module, kind) == ("mlp.router", "bias"):
        return f"blk.{parts[1]}.exp_probs_b.bias"
    if is_sparse and module in _EXPERTS:
        return f"blk.{parts[1]}.{_EXPERTS[module]}.{kind}"
    if parts[0] != "layers" or module not in _LAYER:
        raise BadInputError(
            f"unsupported tensor {name}",
            expected="the tensors of Dream, which llama.cpp's qwen2 shares",
            remedy="use a likeness of Dream",
        )
    return f"blk.{parts[1]}.{_LAYER[module]}.{kind}"


def settings_from_dimensions(sizes: ModelDimensions) -> dict[str, Setting]:
    """Return the settings of a file."""
    about: dict[str, Setting] = {
        "block_count": sizes.layers,
        "context_length": sizes.max_positions,
        "embedding_length": sizes.hidden_size,
        "feed_forward_length": sizes.intermediate_size,
        "attention.head_count": sizes.heads,
        "attention.head_count_kv": sizes.kv_heads,
        "attention.key_length": sizes.head_size,
        "attention.value_length": sizes.head_size,
        "attention.layer_norm_rms_epsilon": float(sizes.rms_norm_eps),
        "rope.dimension_count": sizes.rotary_size,
        "rope.freq_base": float(sizes.rope_theta),
        "vocab_size": sizes.vocab_size,
    }
    architectures: tuple[str, ...] = ARCHITECTURES
    if sizes.moe is not None:
        architectures = SPARSE_ARCHITECTURES
        about |= _settings_of_experts(sizes.moe)
    return {
        "general.architecture": architectures[0],
        "tokenizer.ggml.model": "no_vocab",
        **{f"{architecture}.{name}": value for architecture in architectures for name, value in about.items()},
    }


def _settings_of_experts(moe: MixtureOfExperts) -> dict[str, Setting]:
    return {
        "leading_dense_block_count": len(moe.dense_layers),
        "expert_count": moe.experts,
        "expert_used_count": moe.experts_per_token,
        "expert_feed_forward_length": moe.expert_size,
        "expert_shared_count": 1,
        "expert_shared_feed_forward_length": moe.shared_size,
        "expert_weights_scale": moe.scale,
        "expert_weights_norm": moe.normalize,
        "expert_gating_func": _SIGMOID,
        "expert_group_count": moe.groups,
        "expert_group_used_count": moe.groups_per_token,
    }


def write_head(
    file: IO[bytes],
    settings: Mapping[str, Setting],
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
    write_matrices(file, [tensor], tensor.shape, kind, llama_side)


def write_matrices(
    file: IO[bytes], matrices: Iterable[Float32], shape: Sequence[int], kind: TensorType, llama_side: Path
) -> None:
    """Write a tensor of `shape` from the float32 `matrices` that are stacked in it, as write_tensor does."""
    start = file.tell()
    if kind == F32:
        for each in matrices:
            file.write(each.tobytes())
    else:
        file.flush()  # the program continues at this position
        command = [str(llama_side), "quantize", kind.name, str(shape[-1])]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file) as program:
            assert program.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # its exit code says why
                for each in matrices:
                    program.stdin.write(np.ascontiguousarray(each).data.cast("B"))
                program.stdin.close()
        if program.returncode:
            raise subprocess.CalledProcessError(program.returncode, command)
        file.seek(0, 2)
    written = file.tell() - start
    if written != kind.size(shape):
        raise ValueError(f"wrote {written} bytes of {tuple(shape)} as {kind.name}, expected {kind.size(shape)}")
    file.write(bytes(_aligned_size(written) - written))


def _records(shapes: Mapping[str, Sequence[int]], types: Mapping[str, TensorType]) -> Iterator[bytes]:
    """Yield name, axes (last one first), type and offset of every tensor."""
    offset = 0
    for name, shape in shapes.items():
        axes = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        yield _string(name) + axes + struct.pack("<IQ", types[name].code, offset)
        offset += _aligned_size(types[name].size(shape))


def _value(value: Setting) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
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
