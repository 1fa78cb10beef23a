"""Reference for mixtures of experts, which transformers lacks: float32 in numpy, straight from the checkpoint.

Experts are read one at a time. It shares the small functions of the numpy session, but neither its cache nor a bundle.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lopa.bench.forward.work import ForwardShape
from lopa.export.source import ExportSource
from lopa.export.weights.plan import PlannedWeight, WeightPart
from lopa.runtime.bundle.manifest import MixtureOfExperts, ModelDimensions
from lopa.runtime.contract import Bool, Float32
from lopa.runtime.sessions.numpy_session import expert_weights, gated_mlp, rms_norm, rotated, rotation
from tools.peers.agreement import SideAnswer, answer_from_logits
from tools.peers.attention import Attention, positions_of_rows, visible_rows
from tools.peers.tokens import tokens_of_shape


@dataclass
class _Sequence:
    """Prefix and windows of one case, as one sequence under a mask."""

    shape: ForwardShape
    x: Float32
    """Rows [n, H]."""
    cos: Float32
    sin: Float32
    visible: Bool
    touched: list[float]
    """Share of the experts that the windows' rows use, per sparse layer."""


def compute_sparse_answers(source: ExportSource, cases: Sequence[tuple[ForwardShape, Attention]]) -> list[SideAnswer]:
    """Return the answers of `cases` in order, with the share of touched experts, from one pass over the weights."""
    reader = _Reader(source)
    sizes = source.config.dimensions
    moe = sizes.moe
    assert moe is not None, "only for networks with experts"
    embedding = reader.tensor("embedding.weight")
    sequences = []
    for shape, attention in cases:
        cos, sin = rotation(positions_of_rows(shape)[None, None], sizes.rotary_size, sizes.rope_theta)
        ids = tokens_of_shape(sizes.vocab_size, shape)
        sequences.append(_Sequence(shape, embedding[ids], cos, sin, visible_rows(shape, attention), []))
    del embedding
    for i in range(sizes.layers):
        _add_attention(reader, f"layers.{i}", sequences, sizes)
        norm = reader.tensor(f"layers.{i}.mlp_norm.weight")
        normals = [rms_norm(each.x, norm, sizes.rms_norm_eps) for each in sequences]
        if i in moe.dense_layers:
            added = _mlp(reader, f"layers.{i}.mlp", normals)
        else:
            added = _mixture(reader, f"layers.{i}.mlp", normals, sequences, moe)
        for each, part in zip(sequences, added, strict=True):
            each.x = each.x + part
    norm, head = reader.tensor("final_norm.weight"), reader.tensor("head.weight")
    answers = []
    for each in sequences:
        logits = rms_norm(each.x[each.shape.prefix :], norm, sizes.rms_norm_eps) @ head.T
        answer = answer_from_logits(logits)
        touched = float(np.mean(each.touched))
        answers.append(SideAnswer(answer.best, answer.logprob, answer.entropy, touched))
    return answers


class _Reader:
    """Tensors of a checkpoint by bundle name, as float32. Matrices are [outputs, inputs]."""

    def __init__(self, source: ExportSource) -> None:
        self._source = source
        self._planned: dict[str, PlannedWeight] = {each.name: each for each in source.planned}

    def tensor(self, name: str, expert: int = 0) -> Float32:
        """Return a tensor, or the matrix of one expert."""
        return self._read(self._planned[name].parts[expert])

    def _read(self, part: WeightPart) -> Float32:
        values: Float32 = self._source.stored[part.source].read().float().numpy()
        return values[part.first : part.first + part.rows]


def _add_attention(reader: _Reader, layer: str, sequences: Sequence[_Sequence], sizes: ModelDimensions) -> None:
    """Add the attention of `layer` to the rows of every sequence."""
    norm = reader.tensor(f"{layer}.attention_norm.weight")
    names = ("query", "key", "value", "output")
    matrices = {part: reader.tensor(f"{layer}.attention.{part}.weight") for part in names}
    head_norms = {
        part: reader.tensor(f"{layer}.attention.{part}_norm.weight") for part in ("query", "key") if sizes.qk_norm
    }
    counts = {"query": sizes.heads, "key": sizes.kv_heads, "value": sizes.kv_heads}
    for each in sequences:
        normal = rms_norm(each.x, norm, sizes.rms_norm_eps)
        heads: dict[str, Float32] = {}
        for name, count in counts.items():
            found: Float32 = (normal @ matrices[name].T).reshape(-1, count, sizes.head_size).swapaxes(0, 1)
            if name in head_norms:
                found = rms_norm(found, head_norms[name], sizes.rms_norm_eps)
            heads[name] = found if name == "value" else rotated(found[None, None], each.cos, each.sin)[0, 0]
        each.x = each.x + _attended(heads, each.visible) @ matrices["output"].T


def _attended(heads: dict[str, Float32], visible: Bool) -> Float32:
    """Return the attention of [heads, n, D] under the mask [n, n], as rows [n, heads x D]."""
    groups = len(heads["query"]) // len(heads["key"])
    key, value = (np.repeat(heads[part], groups, axis=0) for part in ("key", "value"))
    scores = heads["query"] @ key.swapaxes(1, 2) / np.sqrt(np.float32(key.shape[-1]))
    scores = np.where(visible, scores, np.float32(-np.inf))
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    found: Float32 = (weights / weights.sum(axis=-1, keepdims=True)) @ value
    return found.swapaxes(0, 1).reshape(len(visible), -1)


def _mlp(reader: _Reader, name: str, rows: Sequence[Float32], expert: int = 0) -> list[Float32]:
    """Return the gated MLP, or that of one expert, of the rows of every sequence."""
    gate, up, down = (reader.tensor(f"{name}.{part}.weight", expert).T for part in ("gate", "up", "down"))
    return [gated_mlp(each, gate, up, down) for each in rows]


def _mixture(
    reader: _Reader, name: str, normals: Sequence[Float32], sequences: Sequence[_Sequence], moe: MixtureOfExperts
) -> list[Float32]:
    """Return the outputs of the experts of every sequence, and note which ones its windows touch."""
    router = reader.tensor(f"{name}.router.weight").T
    bias = reader.tensor(f"{name}.router.bias") if moe.bias else np.float32(0)
    weights = [expert_weights(each @ router, bias, moe) for each in normals]
    for each, chosen in zip(sequences, weights, strict=True):
        each.touched.append(float(chosen[each.shape.prefix :].any(axis=0).mean()))
    totals = _mlp(reader, f"{name}.shared", normals) if moe.shared_size else [np.zeros_like(each) for each in normals]
    for expert in range(moe.experts):
        rows = [np.flatnonzero(each[:, expert]) for each in weights]
        if not any(map(len, rows)):
            continue
        chosen_rows = [normal[row] for normal, row in zip(normals, rows, strict=True)]
        for total, row, weight, found in zip(
            totals, rows, weights, _mlp(reader, f"{name}.experts", chosen_rows, expert), strict=True
        ):
            total[row] += weight[row, expert, None] * found
    return totals
