"""Sessions over a portable graph compared with the numpy reference: padding, prefixes and several requests."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from tests.runtime.check_cases import assert_random_windows_agree
from tests.runtime.random_windows import assert_close, full_mask, random_batch, scattered_mask
from tests.runtime.sequential import sequential
from tests.runtime.sessions.test_onnxruntime_session import changed_bundle

from lopa.runtime import contract
from lopa.runtime.errors import BadInputError
from lopa.runtime.sessions.session import Session, open_session


@pytest.mark.parametrize("seed", range(3))
def test_random_windows_match_the_reference(
    tiny_portable: Path, opened: Callable[[Path, str], Session], seed: int
) -> None:
    """Random (R, B, W, Q) including ones, with windows that end in padding and prefixes that grow by commits."""
    sessions = (opened(tiny_portable, device) for device in ("cpu", "numpy"))
    assert_random_windows_agree(*sessions, seed=seed, turns=8)


def test_values_in_padding_rows_have_no_effect(tiny_portable: Path, opened: Callable[[Path, str], Session]) -> None:
    """The comparison is exact, because masked rows have a weight of exactly 0."""
    rng = np.random.default_rng(5)
    engine = opened(tiny_portable, "cpu")
    sequential(engine).forward(random_batch(rng, [1], 1, 40, 1))
    sequential(engine).commit(1, 0, 40)
    real = 13
    mask = full_mask((1, 3, 20))
    mask[:, :, :, real:] = False
    mask[:, :, real:] = np.eye(20, dtype=np.bool_)[real:]
    batch = random_batch(rng, [1], 3, 20, 6, starts=40, mask=mask)
    batch = dataclasses.replace(batch, logits_index=batch.logits_index % real)
    other_ids, other_positions = batch.input_ids.copy(), batch.position_ids.copy()
    other_ids[..., real:] = rng.integers(0, 975, (1, 3, 20 - real))
    other_positions[..., real:] = rng.integers(0, 2000, (1, 3, 20 - real))
    first = sequential(engine).forward(batch)
    rows = sequential(engine).read_rows(1, 2, real)
    second = sequential(engine).forward(dataclasses.replace(batch, input_ids=other_ids, position_ids=other_positions))
    assert not np.array_equal(other_ids, batch.input_ids)
    np.testing.assert_array_equal(first.topk_ids, second.topk_ids)
    np.testing.assert_array_equal(first.topk_logprobs, second.topk_logprobs)
    np.testing.assert_array_equal(first.entropy, second.entropy)
    for found, right in zip(sequential(engine).read_rows(1, 2, real).layers, rows.layers, strict=True):
        np.testing.assert_array_equal(found, right)


def test_branches_of_a_request_are_independent(tiny_portable: Path, opened: Callable[[Path, str], Session]) -> None:
    """All branches are in one window of the graph, but each result equals the branch alone."""
    rng = np.random.default_rng(6)
    engine = opened(tiny_portable, "cpu")
    batch = random_batch(rng, [4, 2], 3, 12, 5, mask=scattered_mask(rng, (2, 3, 12)))
    together = sequential(engine).forward(batch)
    for branch in range(3):
        one = slice(branch, branch + 1)
        alone = sequential(engine).forward(
            dataclasses.replace(
                batch,
                input_ids=batch.input_ids[:, one],
                position_ids=batch.position_ids[:, one],
                window_mask=batch.window_mask[:, one],
                logits_index=batch.logits_index[:, one],
            )
        )
        assert_close(alone.topk_logprobs, together.topk_logprobs[:, one])
        assert_close(alone.entropy, together.entropy[:, one])


def test_fully_masked_row_stays_finite(tiny_portable: Path, opened: Callable[[Path, str], Session]) -> None:
    """The contract has no such row, but engines with fixed shapes may create some, and a NaN would spread."""
    rng = np.random.default_rng(7)
    engine = opened(tiny_portable, "cpu")
    mask = full_mask((1, 2, 9))
    mask[0, 0, 5] = False
    statistics = sequential(engine).forward(random_batch(rng, [1], 2, 9, 9, mask=mask))
    assert np.isfinite(statistics.topk_logprobs).all()
    assert np.isfinite(statistics.entropy).all()
    assert all(np.isfinite(rows).all() for rows in sequential(engine).read_rows(1, 0, 9).layers)


def test_portable_graph_with_standard_manifest_raises(tiny_portable: Path, tmp_path: Path) -> None:
    changes = {"dialect": "standard", "rotary_inputs": ["standard"]}
    bundle = changed_bundle(tiny_portable, tmp_path / "copy", lambda manifest: manifest.update(changes))
    with pytest.raises(BadInputError, match=r"the inputs of .*past_key_values'"):
        open_session(bundle, "cpu")


def test_graph_with_one_input_per_array_raises(tiny_portable: Path, tmp_path: Path) -> None:
    """An earlier portable form had one input per array. The error names few arrays and a remedy."""
    bundle = changed_bundle(tiny_portable, tmp_path / "copy", lambda _: None)
    model = onnx.load(bundle.graph, load_external_data=False)
    past = model.graph.input.pop()
    names = contract.past_names(5)
    for name in names:
        model.graph.input.add().CopyFrom(past)
        model.graph.input[-1].name = name
        model.graph.input[-1].type.tensor_type.shape.dim[0].dim_value = 1
    model.graph.node.insert(0, onnx.helper.make_node("Concat", names, [past.name], axis=0))
    bundle.graph.write_bytes(model.SerializeToString())
    with pytest.raises(BadInputError, match=r"'past_key_values\.0\.key', .* and 8 more") as caught:
        open_session(bundle, "cpu")
    assert "portable dialect" in caught.value.expected
    assert caught.value.remedy == "export the checkpoint again"


def test_bfloat16_raises(tiny_portable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = changed_bundle(tiny_portable, tmp_path / "copy", lambda manifest: manifest.update(dtype="bfloat16"))
    with pytest.raises(BadInputError, match="no bfloat16 operators"):
        open_session(bundle, "cpu")
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    with pytest.raises(BadInputError, match="a portable graph in bfloat16") as caught:
        open_session(bundle, "cuda:0")
    assert "--dialect both" in caught.value.remedy


def test_unlisted_second_graph_raises(tiny_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"has 'second\.onnx'"):
        changed_bundle(tiny_bundle, tmp_path / "other", lambda manifest: manifest.update(portable_graph="second.onnx"))
