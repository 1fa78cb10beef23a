"""Tensors of a random checkpoint: names, shapes and deviations that keep the forward well-conditioned.

The inputs of every product are normalized to a root mean square of 1. A matrix of values with deviation gain /
sqrt(inputs) therefore gives outputs with deviation `gain`. Each layer adds to the residual stream a share that falls
with the number of layers. The stream thus grows by a small factor over any number of layers.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from statistics import NormalDist

import ml_dtypes
import numpy as np
import numpy.typing as npt

from lopa.export.families.dream import DREAM
from lopa.export.families.family import Architecture
from lopa.export.weights.plan import PlannedWeight, weight_plan_from_network
from lopa.runtime.bundle.manifest import MixtureOfExperts, ModelDimensions
from lopa.runtime.bundle.network import HEAD, network_from_dimensions

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
_ROUTER_DEVIATION = 1.5
"""Deviation of the router's logits, so that rows choose different experts."""
_ROUTER_BIAS = 0.02
"""Deviation of the bias that is added to the router's scores."""
_SIMULATED_ROWS = 1000
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
    network = network_from_dimensions(sizes)
    spreads = _spreads(sizes, _stream_deviation(sizes, tied=tied))
    tensors: dict[str, RandomTensor] = {}
    for weight in weight_plan_from_network(network, architecture):
        if not (tied and weight.name == HEAD):
            # Query, key and value may be one tensor. It has the deviation of values, since norms scale the others.
            tensors |= {
                part.source: _random_tensor(part.source, part.source_shape, weight, spreads) for part in weight.parts
            }
    return list(tensors.values())


def lora_tensors_from_dimensions(
    sizes: ModelDimensions, architecture: Architecture, modules: Collection[str], *, tied: bool
) -> list[RandomTensor]:
    """Return both factors, with PEFT's names, of an adapter for the matrices `modules` of every layer."""
    tensors = []
    spreads = _spreads(sizes, _stream_deviation(sizes, tied=tied))
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
    words = _words(tensor.deviation, tensor.mean)
    generator = np.random.Generator(np.random.SFC64([seed, *tensor.name.encode()]))
    for start in range(0, tensor.items, _PIECE_ITEMS):
        items = min(_PIECE_ITEMS, tensor.items - start)
        draws = generator.integers(0, 1 << 64, -(-items // 4), dtype=np.uint64)
        yield words[draws.view(np.uint16)[:items]]


def _random_tensor(
    source: str, shape: tuple[int, ...], weight: PlannedWeight, spreads: Mapping[str, _Spread]
) -> RandomTensor:
    """Return the tensor `source` of a checkpoint, which is a part of `weight` or contains it."""
    parts = weight.name.split(".")
    module = ".".join(parts[2:-1] if parts[0] == "layers" else parts[:-1])
    if weight.tensor.role == "norm":
        # The deviation of a score is the product of the gains of the query and key norms.
        mean = math.sqrt(_SCORE_DEVIATION) if module in ("attention.query_norm", "attention.key_norm") else 1.0
        return RandomTensor(source, shape, _NORM_DEVIATION, mean)
    if weight.tensor.role == "bias":
        return RandomTensor(source, shape, spreads[module].bias)
    if weight.tensor.role == "embedding":
        return RandomTensor(source, shape, spreads[module].gain)
    return RandomTensor(source, shape, spreads[module].gain / math.sqrt(shape[-1]))


def _stream_deviation(sizes: ModelDimensions, *, tied: bool) -> float:
    """Return the initial deviation of the residual stream, which is the embedding's."""
    return _LOGIT_DEVIATION / math.sqrt(sizes.hidden_size) if tied else 1.0


def _spreads(sizes: ModelDimensions, stream: float) -> dict[str, _Spread]:
    """Return the deviations of linear modules. `stream` is the initial deviation of the residual stream."""
    score_bias = _SCORE_BIAS if sizes.qkv_bias else 0.0
    # The deviation of a score is the product of the query's and the key's deviations, biases included.
    sharpness = math.sqrt(_SCORE_DEVIATION / (1 + score_bias**2))
    score = _Spread(sharpness, bias=score_bias * sharpness)
    mlp = stream * math.sqrt(_MLP_SHARE / sizes.layers / _ACTIVATED_SQUARE)
    spreads = {
        "embedding": _Spread(stream),
        "head": _Spread(_LOGIT_DEVIATION),
        "attention.query": score,
        "attention.key": score,
        "attention.value": _Spread(1.0, bias=_VALUE_BIAS),
        "attention.output": _Spread(stream * math.sqrt(_ATTENTION_SHARE / sizes.layers / _ATTENDED_VARIANCE)),
        "mlp.gate": _Spread(1.0),
        "mlp.up": _Spread(1.0),
        "mlp.down": _Spread(mlp),
    }
    if sizes.moe is not None:
        # The shared expert and the others add equal shares.
        share = math.sqrt(0.5) if sizes.moe.shared_size else 1.0
        spreads |= {f"mlp.{kind}.{part}": _Spread(1.0) for kind in ("experts", "shared") for part in ("gate", "up")}
        spreads["mlp.experts.down"] = _Spread(share * mlp / math.sqrt(_square_of_weights(sizes.moe)))
        spreads["mlp.shared.down"] = _Spread(share * mlp)
        spreads["mlp.router"] = _Spread(_ROUTER_DEVIATION, bias=_ROUTER_BIAS)
    return spreads


def _square_of_weights(moe: MixtureOfExperts) -> float:
    """Return the mean over rows of the sum of the squared weights of a row's experts, by simulation without groups."""
    logits = np.random.default_rng(0).standard_normal((_SIMULATED_ROWS, moe.experts)) * _ROUTER_DEVIATION
    if moe.score == "sigmoid":
        scores = 1 / (1 + np.exp(-logits))
    else:
        scores = np.exp(logits)
        scores /= scores.sum(axis=-1, keepdims=True)
    best = np.sort(scores, axis=-1)[:, -moe.experts_per_token :]
    if moe.normalize:
        best /= best.sum(axis=-1, keepdims=True)
    return float(np.square(best * moe.scale).sum(axis=-1).mean())


@lru_cache(maxsize=64)
def _words(deviation: float, mean: float) -> Words:
    """Return quantiles of a normal distribution as the bits of bfloat16 numbers. Experts share them."""
    table = _quantiles() * np.float32(deviation) + np.float32(mean)
    return table.astype(ml_dtypes.bfloat16).view(np.uint16)


@cache
def _quantiles() -> npt.NDArray[np.float32]:
    """Return the quantiles of the normal distribution at 2**_TABLE_BITS evenly spaced probabilities.

    A lookup is several times faster than numpy's normal generator, and finer than bfloat16.
    """
    count = 1 << _TABLE_BITS
    normal = NormalDist()
    return np.array([normal.inv_cdf((i + 0.5) / count) for i in range(count)], np.float32)
