"""Answers that every side must agree with: transformers' network in float32, with the checkpoint's weights.

Weights are read one layer at a time, so that a model larger than memory has a reference too. Nothing is cached: prefix
and windows are one sequence under a mask, so the reference shares no cache handling with any side. Mixtures of
experts have a reference in numpy.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lopa.bench.forward.work import ForwardShape
from lopa.bench.speed.eager_model import empty_sdpa_network, merged_weight, reference_names, run_layer
from lopa.bench.speed.speed_measurement import torch_threads
from lopa.export.source import ExportSource, source_from_checkpoint
from tools.peers.agreement import SideAnswer, answer_from_logits
from tools.peers.attention import Attention, positions_of_rows, visible_rows
from tools.peers.sparse_reference import compute_sparse_answers
from tools.peers.tokens import tokens_of_shape

Case = tuple[ForwardShape, Attention]
"""Windows of a shape with the tokens of tools.peers.tokens, and what their rows see."""


def reference_answers(checkpoint: Path, cases: Sequence[Case], threads: int, folder: Path) -> dict[Case, SideAnswer]:
    """Return the answer of every case. Answers are kept in `folder` and computed only once per checkpoint."""
    paths = {case: folder / f"{_key(checkpoint, case)}.npz" for case in cases}
    missing = [case for case in cases if not paths[case].exists()]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        for case, answer in zip(missing, compute_answers(checkpoint, missing, threads), strict=True):
            partial = paths[case].with_suffix(".partial.npz")
            touched = np.nan if answer.touched is None else answer.touched
            np.savez(partial, best=answer.best, logprob=answer.logprob, entropy=answer.entropy, touched=touched)
            partial.replace(paths[case])
    return {case: _read(path) for case, path in paths.items()}


def compute_answers(checkpoint: Path, cases: Sequence[Case], threads: int) -> list[SideAnswer]:
    """Return the answers of `cases` in order, from one pass over the checkpoint's weights."""
    source = source_from_checkpoint(checkpoint, None)
    vocabulary = source.config.dimensions.vocab_size
    if source.config.dimensions.moe is not None:
        return compute_sparse_answers(source, cases)
    with torch_threads(threads), torch.inference_mode():
        logits = _logits(source, [tokens_of_shape(vocabulary, shape) for shape, _ in cases], cases)
        return [answer_from_logits(each.numpy()) for each in logits]


def _logits(source: ExportSource, tokens: Sequence[np.ndarray[Any, Any]], cases: Sequence[Case]) -> list[Tensor]:
    """Return the logits [rows of the windows, V] of every case."""
    network = empty_sdpa_network(source)
    model = network.model
    _load(source, model.embed_tokens, "model.embed_tokens.")
    rows = [model.embed_tokens(torch.from_numpy(each)[None]) for each in tokens]
    model.embed_tokens.to("meta")
    rotations = [
        model.rotary_emb(x, torch.from_numpy(positions_of_rows(shape))[None])
        for x, (shape, _) in zip(rows, cases, strict=True)
    ]
    masks = [
        torch.zeros(1, 1, *visible.shape).masked_fill_(torch.from_numpy(~visible), float("-inf"))
        for visible in (visible_rows(*case) for case in cases)
    ]
    for i, layer in enumerate(model.layers):
        _load(source, layer, f"model.layers.{i}.")
        rows = [
            run_layer(layer, x, rotation, mask, None)[0]
            for x, rotation, mask in zip(rows, rotations, masks, strict=True)
        ]
        layer.to("meta")
    _load(source, model.norm, "model.norm.")
    _load(source, network.lm_head, "lm_head.")
    return [network.lm_head(model.norm(x[0, shape.prefix :])) for x, (shape, _) in zip(rows, cases, strict=True)]


def _load(source: ExportSource, module: Any, prefix: str) -> None:
    """Assign the float32 weights whose names start with `prefix` to `module`."""
    names = reference_names(source)
    weights = {
        names[each.name].removeprefix(prefix): merged_weight(source, each, "cpu")
        for each in source.planned
        if names[each.name].startswith(prefix)
    }
    module.load_state_dict(weights, strict=True, assign=True)


def _key(checkpoint: Path, case: Case) -> str:
    """Return a name that changes with the checkpoint's files and the case."""
    files = sorted(checkpoint.glob("*.safetensors"))
    states = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    digest = hashlib.sha256(repr((str(checkpoint.resolve()), states)).encode()).hexdigest()[:12]
    shape, attention = case
    return f"{digest}-{attention}-{shape.branches}x{shape.window}-{shape.prefix}"


def _read(path: Path) -> SideAnswer:
    with np.load(path) as found:
        touched = float(found["touched"]) if "touched" in found else np.nan
        return SideAnswer(found["best"], found["logprob"], found["entropy"], None if np.isnan(touched) else touched)
