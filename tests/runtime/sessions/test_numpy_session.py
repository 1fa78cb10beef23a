"""The numpy reference compared with plain torch in float64 without a cache, and its helper functions."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from tests.runtime.random_windows import VOCABULARY, assert_same_statistics, scattered_mask
from tests.runtime.sequential import sequential
from tests.runtime.sessions.test_onnxruntime_session import changed_bundle

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import ModelDimensions
from lopa.runtime.bundle.weights import weights_from_bundle
from lopa.runtime.contract import Bool, Floats, Statistics, WindowBatch
from lopa.runtime.errors import BadInputError
from lopa.runtime.sessions.host_session import HostSession
from lopa.runtime.sessions.numpy_session import NumpyForward, masked_softmax, silu, statistics_from_logits
from lopa.runtime.sessions.prefix_cache import cache_shape_from_manifest
from lopa.runtime.sessions.session import open_session

if TYPE_CHECKING:
    from torch import Tensor


def logits_by_torch(
    weights: Mapping[str, "Tensor"], sizes: ModelDimensions, ids: list[int], positions: list[int], mask: Bool
) -> "Tensor":
    """Return logits [N, V] of a whole sequence in float64, computed head by head. Rows attend as `mask` [N, N]
    allows.
    """
    import torch

    visible = torch.from_numpy(mask)
    position = torch.tensor(positions, dtype=torch.float64)

    def norm(x: "Tensor", weight: "Tensor") -> "Tensor":
        return torch.nn.functional.rms_norm(x, weight.shape, weight, sizes.rms_norm_eps)

    def rotated(x: "Tensor") -> "Tensor":
        """Rotate each pair (j, j + D/2) as a complex number by position * theta^(-2j/D)."""
        half = sizes.head_size // 2
        angle = position[:, None] * sizes.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
        result = torch.complex(x[:, :half], x[:, half:]) * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([result.real, result.imag], dim=1)

    x = weights["embedding.weight"][torch.tensor(ids)]
    for i in range(sizes.layers):
        layer = {name.removeprefix(f"layers.{i}."): w for name, w in weights.items() if name.startswith(f"layers.{i}.")}
        normal = norm(x, layer["attention_norm.weight"])
        query, key, value = (
            torch.split(
                normal @ layer[f"attention.{part}.weight"] + layer.get(f"attention.{part}.bias", 0), sizes.head_size, 1
            )
            for part in ("query", "key", "value")
        )
        if sizes.qk_norm:
            query = tuple(norm(head, layer["attention.query_norm.weight"]) for head in query)
            key = tuple(norm(head, layer["attention.key_norm.weight"]) for head in key)
        heads = []
        for head in range(sizes.heads):
            shared = head // (sizes.heads // sizes.kv_heads)
            scores = rotated(query[head]) @ rotated(key[shared]).T / sizes.head_size**0.5
            heads.append(scores.masked_fill(~visible, -torch.inf).softmax(dim=1) @ value[shared])
        x = x + torch.cat(heads, dim=1) @ layer["attention.output.weight"]
        normal = norm(x, layer["mlp_norm.weight"])
        gate = torch.nn.functional.silu(normal @ layer["mlp.gate.weight"])
        x = x + (gate * (normal @ layer["mlp.up.weight"])) @ layer["mlp.down.weight"]
    return norm(x, weights["final_norm.weight"]) @ weights["head.weight"]


def network_variant(
    weights: Mapping[str, Floats], sizes: ModelDimensions, *, qkv_bias: bool, qk_norm: bool, head_size: int
) -> tuple[dict[str, Floats], ModelDimensions]:
    """Derive a network with smaller heads, without biases, or with random head norms."""
    rng = np.random.default_rng(3)
    kept = [head * sizes.head_size + i for head in range(sizes.heads) for i in range(head_size)]
    changed: dict[str, Floats] = {}
    for name, weight in weights.items():
        if name.endswith("attention.output.weight"):
            changed[name] = weight[kept]
        elif ".attention." in name:
            changed[name] = weight[..., kept[: weight.shape[-1] // sizes.head_size * head_size]]
        else:
            changed[name] = weight
    if not qkv_bias:
        changed = {name: weight for name, weight in changed.items() if not name.endswith(".bias")}
    if qk_norm:
        for name in (
            f"layers.{i}.attention.{part}_norm.weight" for i in range(sizes.layers) for part in ("query", "key")
        ):
            changed[name] = rng.uniform(0.5, 2, head_size).astype(np.float32)
    return changed, msgspec.structs.replace(sizes, qkv_bias=qkv_bias, qk_norm=qk_norm, head_size=head_size)


@pytest.mark.parametrize(
    ("pieces", "qkv_bias", "qk_norm", "head_size"),
    [
        *(([], True, False, 32), ([30, 50, 7], True, False, 32), ([30, 50, 7], False, True, 24), ([9], True, True, 24)),
    ],
)
def test_windows_over_a_prefix_match_whole_sequences_in_torch(
    tiny_bundle_logits: Path, pieces: list[int], qkv_bias: bool, qk_norm: bool, head_size: int
) -> None:
    """Each committed piece attends to itself and earlier pieces. The window attends to all pieces and, by its mask, to
    itself.
    """
    torch = pytest.importorskip("torch")
    bundle = Bundle.open(tiny_bundle_logits)
    network, sizes = network_variant(
        weights_from_bundle(bundle), bundle.manifest.dimensions, qkv_bias=qkv_bias, qk_norm=qk_norm, head_size=head_size
    )
    weights = {name: torch.from_numpy(w.astype(np.float64)) for name, w in network.items()}
    rng = np.random.default_rng(len(pieces))
    total = sum(pieces)
    requests, branches, width = 2, 2, 12
    manifest = msgspec.structs.replace(bundle.manifest, dimensions=sizes)
    session = HostSession(NumpyForward(network, manifest), "numpy", cache_shape_from_manifest(manifest))
    prefix_ids = rng.integers(0, VOCABULARY, (requests, total))
    piece_of = np.repeat(np.arange(len(pieces)), pieces)
    for piece, rows in enumerate(pieces):
        where = np.flatnonzero(piece_of == piece)
        shape = (requests, 1, rows)
        batch = WindowBatch(
            requests=(0, 1),
            input_ids=prefix_ids[:, None, where],
            position_ids=np.broadcast_to(where, shape),
            window_mask=np.ones((*shape, rows), np.bool_),
            logits_index=np.zeros((requests, 1, 1), np.int64),
            temperature=np.ones(requests, np.float32),
        )
        sequential(session).forward(batch)
        for request in (0, 1):
            sequential(session).commit(request, 0, rows)
    shape = (requests, branches, width)
    window = WindowBatch(
        requests=(0, 1),
        input_ids=rng.integers(0, VOCABULARY, shape),
        # Positions come from position_ids alone, so the rows are spread and out of order.
        position_ids=np.stack([rng.permutation(200)[:width] + total for _ in range(4)]).reshape(shape),
        window_mask=scattered_mask(rng, shape),
        logits_index=np.broadcast_to(np.arange(width)[::-1], shape),
        temperature=np.asarray([1, 0.5], np.float32),
    )
    statistics = sequential(session).forward(window)
    assert statistics.logits is not None
    for request in range(requests):
        for branch in range(branches):
            mask = np.zeros((total + width, total + width), np.bool_)
            mask[:total, :total] = piece_of[:, None] >= piece_of[None, :]
            mask[total:, :total] = True
            mask[total:, total:] = window.window_mask[request, branch]
            expected = logits_by_torch(
                weights,
                sizes,
                [*prefix_ids[request].tolist(), *window.input_ids[request, branch].tolist()],
                [*range(total), *window.position_ids[request, branch].tolist()],
                mask,
            )[total:].flip(0)
            tempered = (expected / float(window.temperature[request])).log_softmax(dim=1)
            best = tempered.topk(8, dim=1)
            # float32 represents an angle of 300 only to 2e-5, so the difference to float64 exceeds rounding.
            assert_same_statistics(
                Statistics(
                    topk_ids=statistics.topk_ids[request, branch],
                    topk_logprobs=statistics.topk_logprobs[request, branch],
                    entropy=statistics.entropy[request, branch],
                    logits=statistics.logits[request, branch],
                ),
                Statistics(
                    topk_ids=best.indices.numpy(),
                    topk_logprobs=best.values.numpy().astype(np.float32),
                    entropy=-(tempered.exp() * tempered).sum(dim=1).numpy().astype(np.float32),
                    logits=expected.numpy().astype(np.float32),
                ),
                tolerance=5e-5,
            )


def test_ties_are_ordered_by_id() -> None:
    logits = np.tile(np.asarray([1, 3, 2], np.float32), 7)[None, None, None]
    statistics = statistics_from_logits(logits, np.ones(1, np.float32), keep_logits=False)
    assert statistics.topk_ids[0, 0, 0].tolist() == [1, 4, 7, 10, 13, 16, 19, 2]
    assert statistics.logits is None


def test_large_logits_and_low_temperature_stay_finite() -> None:
    logits = np.random.default_rng(0).standard_normal((1, 1, 2, 30)).astype(np.float32) * 1e4
    statistics = statistics_from_logits(logits, np.asarray([1e-3], np.float32), keep_logits=False)
    assert np.isfinite(statistics.topk_logprobs).all()
    np.testing.assert_array_equal(statistics.entropy, 0)


def test_masked_softmax_gives_masked_entries_no_weight() -> None:
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((6, 9)).astype(np.float32) * 50
    mask = rng.random((6, 9)) < 0.5
    mask[0] = False
    scores[~mask] = 1e30
    weights = masked_softmax(scores, mask)
    assert not weights[~mask].any()
    np.testing.assert_allclose(weights.sum(axis=1), [0, 1, 1, 1, 1, 1], rtol=1e-6)


def test_silu_does_not_overflow() -> None:
    x = np.asarray([-1e4, -1, 0, 1, 1e4], np.float32)
    np.testing.assert_allclose(silu(x), [0, -0.26894143, 0, 0.7310586, 1e4], rtol=1e-6)


def test_missing_weight_raises(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = changed_bundle(
        tiny_bundle, tmp_path / "copy", lambda each: each["tensors"].pop("layers.3.attention.key.bias")
    )
    with pytest.raises(BadInputError, match=r"no weight named layers\.3\.attention\.key\.bias"):
        open_session(bundle, "numpy")


def test_missing_head_norms_raise(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = changed_bundle(tiny_bundle, tmp_path / "copy", lambda each: each["dimensions"].update(qk_norm=True))
    with pytest.raises(BadInputError, match=r"layers\.0\.attention\.key_norm\.weight.* and 7 more"):
        open_session(bundle, "numpy")


def test_head_norm_of_another_size_raises(tiny_bundle: Path, tmp_path: Path) -> None:
    def change(manifest: Any) -> None:
        manifest["dimensions"]["qk_norm"] = True
        hidden = manifest["tensors"]["layers.0.attention_norm.weight"]
        for i in range(5):
            for part in ("query", "key"):
                manifest["tensors"][f"layers.{i}.attention.{part}_norm.weight"] = hidden

    with pytest.raises(BadInputError, match=r"layers\.0\.attention\.query_norm\.weight the shape \[192\]") as caught:
        open_session(changed_bundle(tiny_bundle, tmp_path / "copy", change), "numpy")
    assert caught.value.expected == "[32], from its dimensions"
