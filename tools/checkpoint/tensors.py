"""Tensors of a random checkpoint: names, shapes and deviations that keep the forward well-conditioned.

The inputs of every product are normalized to a root mean square of 1. A matrix of values with deviation gain /
sqrt(inputs) therefore gives outputs with deviation `gain`. Each layer adds to the residual stream a share that falls
with the number of layers. The stream thus grows by a small factor over any number of layers.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import ml_dtypes
import numpy as np
import numpy.typing as npt

from lopa.export.families.dream import DREAM
from lopa.export.families.family import Architecture
from lopa.runtime.bundle.manifest import ModelDimensions
from lopa.runtime.bundle.network import EMBEDDING, HEAD, TensorSpec, network_from_dimensions

Words = npt.NDArray[np.uint16]
ITEM_SIZE = 2
"""Bytes of a bfloat16."""
RANK = 32
ALPHA = 64
"""PEFT's lora_alpha. The product of an adapter is scaled by ALPHA / RANK."""

_LOGIT_DEVIATION = 3.0
"""Deviation of the logits in nats. The best of 150,000 tokens is about 13 above the mean, and 0.4 (median) above the
second."""
_SCORE_DEVIATION = 4.0
"""Deviation of the attention scores before the softmax, in nats.

With much flatter attention every row gets the same average, and all masked rows predict the same token. Much sharper
attention amplifies rounding errors from layer to layer.
"""
_SCORE_BIAS = 2.0
"""Deviation of the query and key biases, relative to the outputs of their matrices.

They make attention depend on distance, as in trained checkpoints. Otherwise masked rows, whose embeddings are equal,
hardly differ.
"""
_VALUE_BIAS = 0.3
_ATTENTION_SHARE = 1.5
"""Variance that all attention layers together add to a stream of variance 1.

It assumes that averaged values keep _ATTENDED_VARIANCE. With equal rows they would keep 1.
"""
_ATTENDED_VARIANCE = 0.125
_MLP_SHARE = 6.0
"""Variance that all MLPs together add to the stream."""
_ACTIVATED_SQUARE = 0.3558
"""Mean of silu(z)^2 for a standard normal z."""
_NORM_DEVIATION = 0.1
_LORA_SHARE = 0.2
"""Deviation of an adapter's product, relative to its matrix."""

_TABLE_BITS = 16
_PIECE_ITEMS = 1 << 22
"""Numbers generated per piece (8 MiB), a multiple of four so that each uses whole draws."""


@dataclass(frozen=True)
class RandomTensor:
    """A bfloat16 tensor of normally distributed values."""

    name: str
    shape: tuple[int, ...]
    deviation: float
    mean: float = 0.0

    @property
    def items(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class _Spread:
    """Deviations of one linear module of a layer."""

    gain: float
    """Deviation of the outputs without bias, for inputs of mean square 1."""
    bias: float = 0.0


def tensors_from_dimensions(
    sizes: ModelDimensions, architecture: Architecture = DREAM.architecture, *, tied: bool = False
) -> list[RandomTensor]:
    """Return the tensors of a checkpoint of `architecture`, in the order of the forward. Matrices are [outputs,
    inputs].

    With `tied` there is no head. The embedding then has the head's deviation, and the layers' shares are scaled alike.
    """
    outer, network = architecture.outer_names, network_from_dimensions(sizes)
    head = _LOGIT_DEVIATION / math.sqrt(sizes.hidden_size)
    stream = head if tied else 1.0
    tensors = [RandomTensor(outer[EMBEDDING], network.embedding.shape, stream)]
    spreads = _spreads(sizes, stream)
    for i, layer in enumerate(network.layers):
        prefix = architecture.layer_prefix.format(layer=i)
        tensors += [
            _layer_tensor(prefix + architecture.layer_names[name], name.rpartition(".")[0], tensor, spreads)
            for name, tensor in layer.tensors.items()
        ]
    tensors.append(RandomTensor(outer["final_norm.weight"], network.final_norm.shape, _NORM_DEVIATION, mean=1.0))
    return tensors if tied else [*tensors, RandomTensor(outer[HEAD], network.head.shape[::-1], head)]


def lora_tensors_from_dimensions(
    sizes: ModelDimensions, architecture: Architecture, modules: Collection[str], *, tied: bool
) -> list[RandomTensor]:
    """Return both factors, with PEFT's names, of an adapter for the matrices `modules` of every layer."""
    tensors = []
    spreads = _spreads(sizes, _LOGIT_DEVIATION / math.sqrt(sizes.hidden_size) if tied else 1.0)
    for i, layer in enumerate(network_from_dimensions(sizes).layers):
        for name, tensor in layer.tensors.items():
            module = name.removesuffix(".weight")
            if module in modules:
                inputs, outputs = tensor.shape
                source = architecture.layer_prefix.format(layer=i) + architecture.layer_names[name]
                prefix = f"base_model.model.{source.removesuffix('.weight')}"
                up = _LORA_SHARE * spreads[module].gain * RANK / (ALPHA * math.sqrt(RANK))
                tensors.append(RandomTensor(f"{prefix}.lora_A.weight", (RANK, inputs), 1 / math.sqrt(inputs)))
                tensors.append(RandomTensor(f"{prefix}.lora_B.weight", (outputs, RANK), up))
    return tensors


def pieces_of_tensor(tensor: RandomTensor, seed: int) -> Iterator[Words]:
    """Yield the values in order, in pieces, as the bits of bfloat16 numbers.

    They depend only on the seed and the tensor's name.
    """
    table = _quantiles() * np.float32(tensor.deviation) + np.float32(tensor.mean)
    words = table.astype(ml_dtypes.bfloat16).view(np.uint16)
    generator = np.random.Generator(np.random.SFC64([seed, *tensor.name.encode()]))
    for start in range(0, tensor.items, _PIECE_ITEMS):
        items = min(_PIECE_ITEMS, tensor.items - start)
        draws = generator.integers(0, 1 << 64, -(-items // 4), dtype=np.uint64)
        yield words[draws.view(np.uint16)[:items]]


def _layer_tensor(source: str, module: str, tensor: TensorSpec, spreads: Mapping[str, _Spread]) -> RandomTensor:
    """Return the tensor `source` of a checkpoint, which belongs to `module` of a layer."""
    if tensor.role == "norm":
        # The deviation of a score is the product of the gains of the query and key norms.
        mean = math.sqrt(_SCORE_DEVIATION) if module in ("attention.query_norm", "attention.key_norm") else 1.0
        return RandomTensor(source, tensor.shape, _NORM_DEVIATION, mean)
    if tensor.role == "bias":
        return RandomTensor(source, tensor.shape, spreads[module].bias)
    inputs, outputs = tensor.shape
    return RandomTensor(source, (outputs, inputs), spreads[module].gain / math.sqrt(inputs))


def _spreads(sizes: ModelDimensions, stream: float) -> dict[str, _Spread]:
    """Return the deviations of a layer's linear modules. `stream` is the initial deviation of the residual stream."""
    score_bias = _SCORE_BIAS if sizes.qkv_bias else 0.0
    # The deviation of a score is the product of the query's and the key's deviations, biases included.
    sharpness = math.sqrt(_SCORE_DEVIATION / (1 + score_bias**2))
    score = _Spread(sharpness, bias=score_bias * sharpness)
    return {
        "attention.query": score,
        "attention.key": score,
        "attention.value": _Spread(1.0, bias=_VALUE_BIAS),
        "attention.output": _Spread(stream * math.sqrt(_ATTENTION_SHARE / sizes.layers / _ATTENDED_VARIANCE)),
        "mlp.gate": _Spread(1.0),
        "mlp.up": _Spread(1.0),
        "mlp.down": _Spread(stream * math.sqrt(_MLP_SHARE / sizes.layers / _ACTIVATED_SQUARE)),
    }


@cache
def _quantiles() -> npt.NDArray[np.float32]:
    """Return the quantiles of the normal distribution at 2**_TABLE_BITS evenly spaced probabilities.

    A lookup is several times faster than numpy's normal generator, and finer than bfloat16.
    """
    count = 1 << _TABLE_BITS
    normal = NormalDist()
    return np.array([normal.inv_cdf((i + 0.5) / count) for i in range(count)], np.float32)
