"""Folders of forwards: storage of bfloat16, and errors that are raised before any computation."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from polygraphy.json import load_json

from lopa.export.replay.answered_forward import AnsweredForward
from lopa.export.replay.forwards_folder import ComparisonRule, check_folder, write_forwards
from lopa.export.verify.cases import random_windows
from lopa.runtime.contract import Statistics, float32_from_stored
from lopa.runtime.errors import BadInputError, MissingBackendError
from lopa.runtime.install_hint import pip_install
from lopa.runtime.sessions.prefix_cache import Prefix


def bits(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Return bfloat16 numbers between -2 and 2."""
    return (rng.uniform(-2, 2, shape).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def test_bfloat16_is_kept_bit_by_bit(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    batch = random_windows((5, 6), (3, 4, 2), 100, rng, start=7)
    statistics = Statistics(
        topk_ids=rng.integers(100, size=(2, 3, 2, 8)),
        topk_logprobs=-rng.random((2, 3, 2, 8), np.float32),
        entropy=rng.random((2, 3, 2), np.float32),
    )
    prefix = Prefix(bits(rng, 4, 2, 2, 64, 8), rng.random((2, 64)) < 0.5)
    rows = tuple(bits(rng, 2, 3, 2, 4, 8) for _ in range(4))
    forward = AnsweredForward(batch, prefix, statistics, rows)
    write_forwards(tmp_path, [forward], "standard", ComparisonRule("cuda:0", 0.2, by_rms=False, margin=1.0))
    (inputs,) = load_json(str(tmp_path / "inputs.json"))
    ((_, (outputs,)),) = load_json(str(tmp_path / "outputs.json")).items()
    assert list(inputs)[:2] == ["input_ids", "position_ids"]
    np.testing.assert_array_equal(inputs["prefix_mask"], prefix.mask)
    for found, stored in (
        (inputs["past_key_values.1.value"], prefix.block[3]),
        (outputs["window_key_values.0.key"], rows[0]),
    ):
        assert found.dtype == torch.bfloat16
        np.testing.assert_array_equal(found.float().numpy(), float32_from_stored(stored))

    (tmp_path / "portable").mkdir()
    write_forwards(
        tmp_path / "portable", [forward], "portable", ComparisonRule("cuda:0", 0.2, by_rms=False, margin=None)
    )
    ((_, (folded,)),) = load_json(str(tmp_path / "portable" / "outputs.json")).items()
    assert folded["window_key_values.0.key"].shape == (2, 2, 12, 8)
    np.testing.assert_array_equal(
        folded["window_key_values.0.key"][1, 0, 2 * 4 + 3].float().numpy(), float32_from_stored(rows[0][1, 2, 0, 3])
    )  # row 3 of branch 2
    np.testing.assert_array_equal(folded["topk_ids"], statistics.topk_ids.reshape(12, 8))


def test_a_folder_that_exists_is_rejected(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "file"):
        (tmp_path / "file").touch()
        with pytest.raises(BadInputError, match="exists") as caught:
            check_folder(path, "float32")
        assert "choose another, or remove it" in caught.value.remedy
    with pytest.raises(BadInputError):
        check_folder(Path("a\0b"), "float32")
    check_folder(tmp_path / "new", "float32")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("absent", "dtype"), [("polygraphy", "float32"), ("torch", "bfloat16")])
def test_missing_libraries(absent: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == absent else real(name))
    with pytest.raises(MissingBackendError, match=f"{absent} is not installed") as caught:
        check_folder(tmp_path / "new", dtype)
    assert caught.value.exit_code == 3
    assert caught.value.remedy == pip_install("polygraphy" if absent == "polygraphy" else "export")
