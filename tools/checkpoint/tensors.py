"""The tensors of a random checkpoint: names, shapes, and how far their values spread, chosen so that the forward is
well-conditioned. Does not know files.

Inputs of every product have been normalized to a root mean square of 1, so a matrix whose values deviate by
gain / sqrt(inputs) gives outputs that deviate by `gain`. Each layer adds to the residual stream a share that falls with
the number of layers, so that the stream grows by a small factor over all of them, however many there are.
"""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import ml_dtypes
import numpy as np
import numpy.typing as npt

from lopa.export.families.dream import DREAM
from lopa.export.families.family import Architecture
from lopa.runtime.bundle.manifest import ModelDimensions

Words = npt.NDArray[np.uint16]
ITEM_SIZE = 2
"""Bytes of a bfloat16."""
RANK = 32
ALPHA = 64
"""lora_alpha: the product of an adapter is multiplied by ALPHA / RANK."""

_LOGIT_DEVIATION = 3.0
"""Nats. The best of 150,000 tokens then stands about 13 nats above the mean, and 0.4 (median) above the second."""
_SCORE_DEVIATION = 4.0
"""Nats, of attention's scores before the softmax. Much flatter attention gives every row the same average, and then
every masked row predicts the same token; much sharper attention enlarges rounding errors from layer to layer."""
_SCORE_BIAS = 2.0
"""Deviation of the biases of queries and keys, relative to what their matrices give. They make a row look at others by
their distance, as in trained checkpoints: otherwise masked rows, whose embeddings are equal, hardly differ."""
_VALUE_BIAS = 0.3
_ATTENTION_SHARE = 1.5
"""Variance that all attentions together add to a stream that begins at 1, if the values that they average have
_ATTENDED_VARIANCE left; 1 would be left where all rows are alike."""
_ATTENDED_VARIANCE = 0.125
_MLP_SHARE = 6.0
"""Variance that all MLPs together add to the stream."""
_ACTIVATED_SQUARE = 0.3558
"""Mean of silu(z)^2 for a standard normal z."""
_NORM_DEVIATION = 0.1
_LORA_SHARE = 0.2
"""Deviation of what an adapter adds to a matrix, relative to the matrix's own."""

_TABLE_BITS = 16
_PIECE_ITEMS = 1 << 22
"""Numbers made at a time: 8 MiB. A multiple of four, so that pieces use up whole draws."""


@dataclass(frozen=True)
class RandomTensor:
    """A bfloat16 tensor of normally distributed values."""

    name: str
    shape: tuple[int, ...]
    deviation: float
    mean: float = 0.0

    @property
    def items(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class _Matrix:
    """One linear module of a layer."""

    shape: tuple[int, int]
    """[outputs, inputs]"""
    gain: float
    """Deviation of its outputs for inputs of mean square 1."""
    bias: float = 0.0
    """Deviation of its bias; 0: it has none."""

    @property
    def deviation(self) -> float:
        """Of its values."""
        return self.gain / math.sqrt(self.shape[1])


def tensors_from_dimensions(
    sizes: ModelDimensions, architecture: Architecture = DREAM.architecture, *, tied: bool = False
) -> list[RandomTensor]:
    """Every tensor of a checkpoint of `architecture`, in the order of the forward; matrices are [outputs, inputs].

    With `tied` there is no head: the embedding has its deviation, and what layers add to the stream is as much smaller.
    """
    outer, vocabulary = architecture.outer_names, (sizes.vocab_size, sizes.hidden_size)
    head = _LOGIT_DEVIATION / math.sqrt(sizes.hidden_size)
    stream = head if tied else 1.0
    tensors = [RandomTensor(outer["embedding.weight"], vocabulary, stream)]
    for layer in range(sizes.layers):
        prefix = architecture.layer_prefix.format(layer=layer)
        for name, shape, deviation, mean in _layer(sizes, stream):
            tensors.append(RandomTensor(prefix + architecture.layer_names[name], shape, deviation, mean))
    tensors.append(RandomTensor(outer["final_norm.weight"], (sizes.hidden_size,), _NORM_DEVIATION, mean=1.0))
    return tensors if tied else [*tensors, RandomTensor(outer["head.weight"], vocabulary, head)]


def lora_tensors_from_dimensions(
    sizes: ModelDimensions, architecture: Architecture, modules: Collection[str], *, tied: bool
) -> list[RandomTensor]:
    """Both factors, under PEFT's names, of an adapter for the matrices `modules` of every layer."""
    tensors = []
    matrices = _matrices(sizes, _LOGIT_DEVIATION / math.sqrt(sizes.hidden_size) if tied else 1.0)
    for layer in range(sizes.layers):
        for module, matrix in matrices.items():
            if module in modules:
                outputs, inputs = matrix.shape
                name = architecture.layer_prefix.format(layer=layer) + architecture.layer_names[f"{module}.weight"]
                prefix = f"base_model.model.{name.removesuffix('.weight')}"
                up = _LORA_SHARE * matrix.gain * RANK / (ALPHA * math.sqrt(RANK))
                tensors.append(RandomTensor(f"{prefix}.lora_A.weight", (RANK, inputs), 1 / math.sqrt(inputs)))
                tensors.append(RandomTensor(f"{prefix}.lora_B.weight", (outputs, RANK), up))
    return tensors


def pieces_of_tensor(tensor: RandomTensor, seed: int) -> Iterator[Words]:
    """The values in order, some at a time, as the bits of bfloat16 numbers.

    They depend on the seed and on the tensor's name, on nothing else.
    """
    table = _quantiles() * np.float32(tensor.deviation) + np.float32(tensor.mean)
    words = table.astype(ml_dtypes.bfloat16).view(np.uint16)
    generator = np.random.Generator(np.random.SFC64([seed, *tensor.name.encode()]))
    for start in range(0, tensor.items, _PIECE_ITEMS):
        items = min(_PIECE_ITEMS, tensor.items - start)
        draws = generator.integers(0, 1 << 64, -(-items // 4), dtype=np.uint64)
        yield words[draws.view(np.uint16)[:items]]


def _layer(sizes: ModelDimensions, stream: float) -> Iterator[tuple[str, tuple[int, ...], float, float]]:
    """Name in a bundle, shape in a checkpoint, deviation and mean of a layer's tensors, in the order of the forward."""
    yield "attention_norm.weight", (sizes.hidden_size,), _NORM_DEVIATION, 1.0
    for module, matrix in _matrices(sizes, stream).items():
        if module == "mlp.gate":
            yield "mlp_norm.weight", (sizes.hidden_size,), _NORM_DEVIATION, 1.0
        yield f"{module}.weight", matrix.shape, matrix.deviation, 0.0
        if matrix.bias:
            yield f"{module}.bias", matrix.shape[:1], matrix.bias, 0.0
        if sizes.qk_norm and module in ("attention.query", "attention.key"):
            # A score's deviation is the product of the two gains.
            yield f"{module}_norm.weight", (sizes.head_size,), _NORM_DEVIATION, math.sqrt(_SCORE_DEVIATION)


def _matrices(sizes: ModelDimensions, stream: float) -> dict[str, _Matrix]:
    """Those of a layer by their names in a bundle, in the order of the forward.

    `stream` is the deviation at which the residual stream begins.
    """
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    queries, keys = sizes.heads * sizes.head_size, sizes.kv_heads * sizes.head_size
    score_bias, value_bias = (_SCORE_BIAS, _VALUE_BIAS) if sizes.qkv_bias else (0.0, 0.0)
    # A score's deviation is the product of those of query and key, each with its bias.
    sharpness = math.sqrt(_SCORE_DEVIATION / (1 + score_bias**2))
    attention = stream * math.sqrt(_ATTENTION_SHARE / sizes.layers / _ATTENDED_VARIANCE)
    mlp = stream * math.sqrt(_MLP_SHARE / sizes.layers / _ACTIVATED_SQUARE)
    return {
        "attention.query": _Matrix((queries, hidden), sharpness, bias=score_bias * sharpness),
        "attention.key": _Matrix((keys, hidden), sharpness, bias=score_bias * sharpness),
        "attention.value": _Matrix((keys, hidden), 1.0, bias=value_bias),
        "attention.output": _Matrix((hidden, queries), attention),
        "mlp.gate": _Matrix((inner, hidden), 1.0),
        "mlp.up": _Matrix((inner, hidden), 1.0),
        "mlp.down": _Matrix((hidden, inner), mlp),
    }


@cache
def _quantiles() -> npt.NDArray[np.float32]:
    """The normal distribution's values at evenly spaced probabilities, as many as a draw of _TABLE_BITS bits has.

    A lookup is several times faster than numpy's normal generator, and finer than bfloat16.
    """
    count = 1 << _TABLE_BITS
    normal = NormalDist()
    return np.array([normal.inv_cdf((i + 0.5) / count) for i in range(count)], np.float32)
