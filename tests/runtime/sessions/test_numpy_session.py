"""Helper functions of the numpy reference, and weights that it refuses. tests/conformance/plain has its results."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime.sessions.test_onnxruntime_session import changed_bundle

from lopa.runtime.errors import BadInputError
from lopa.runtime.sessions.numpy_forward import masked_softmax, silu, statistics_from_logits
from lopa.runtime.sessions.session import open_session


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
    def change(manifest: Any) -> None:
        del manifest["tensors"]["layers.3.attention.key.bias"]
        manifest["twins"] = []  # that for CUDA names its tensors

    bundle = changed_bundle(tiny_bundle, tmp_path / "copy", change)
    with pytest.raises(BadInputError, match=r"no weight named layers\.3\.attention\.key\.bias"):
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
