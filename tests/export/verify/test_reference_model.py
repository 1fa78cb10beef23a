"""transformers' networks as a reference: they apply the given mask and no causal one."""

import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import Qwen2Config, Qwen2ForCausalLM

from lopa.export.verify.cases import Sequences
from lopa.export.verify.reference_model import TransformersReference, network_from_checkpoint
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.errors import BadInputError
from lopa.tiny import ADAPTER, CHECKPOINT

BRANCHES, LENGTH = 2, 9


@pytest.fixture(scope="module")
def manifest(tiny_bundle: Path) -> Manifest:
    return Bundle.open(tiny_bundle).manifest


@pytest.fixture(scope="module")
def reference(manifest: Manifest) -> TransformersReference:
    return TransformersReference(network_from_checkpoint(manifest, CHECKPOINT, ADAPTER))


def sequences() -> Sequences:
    rng = np.random.default_rng(8)
    return Sequences(
        input_ids=rng.integers(975, size=(BRANCHES, LENGTH)),
        position_ids=np.tile(np.arange(20, 20 + LENGTH), (BRANCHES, 1)),
        mask=np.ones((BRANCHES, LENGTH, LENGTH), np.bool_),
        wanted=np.tile(np.arange(LENGTH), (BRANCHES, 1)),
    )


def with_another_last_token(whole: Sequences) -> Sequences:
    ids = whole.input_ids.copy()
    ids[:, -1] = (ids[:, -1] + 1) % 975
    return replace(whole, input_ids=ids)


def largest_difference(reference: TransformersReference, whole: Sequences, other: Sequences) -> np.ndarray:
    """Return the largest differences by row, over branches and vocabulary."""
    difference = np.abs(reference.forward(whole).logits - reference.forward(other).logits)
    return difference.max(axis=(0, 2))


def test_rows_see_later_rows(reference: TransformersReference) -> None:
    whole = sequences()
    assert (largest_difference(reference, whole, with_another_last_token(whole)) > 1e-2).all()


def test_rows_do_not_attend_to_masked_rows(reference: TransformersReference) -> None:
    mask = sequences().mask.copy()
    mask[:, :4, -1] = (
        False  # rows 0 to 3 must not depend on the last row, even through other rows; rows 4 to 7 attend to it
    )
    mask[:, :4, 4:-1] = False
    whole = replace(sequences(), mask=mask)
    difference = largest_difference(reference, whole, with_another_last_token(whole))
    assert (difference[:4] == 0).all()
    assert (difference[4:] > 1e-2).all()


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft's own call
def test_a_causal_mask_gives_the_models_default_behaviour(reference: TransformersReference) -> None:
    causal = replace(sequences(), mask=np.tril(sequences().mask))
    model = Qwen2ForCausalLM.from_pretrained(CHECKPOINT, config=Qwen2Config.from_pretrained(CHECKPOINT))
    model = PeftModel.from_pretrained(model, ADAPTER).eval()
    with torch.no_grad():
        expected = model(torch.from_numpy(causal.input_ids), position_ids=torch.from_numpy(causal.position_ids)).logits
    np.testing.assert_allclose(reference.forward(causal).logits, expected, atol=2e-4)
    assert np.abs(reference.forward(sequences()).logits - expected.numpy()).max() > 0.1


def test_only_sampled_positions_in_their_order(reference: TransformersReference) -> None:
    whole = sequences()
    some = replace(whole, wanted=np.array([[3, 0, 3], [8, 8, 1]]))
    every = reference.forward(whole).logits
    np.testing.assert_allclose(
        reference.forward(some).logits, np.stack([every[0, [3, 0, 3]], every[1, [8, 8, 1]]]), atol=1e-4
    )


def test_keys_are_rotated_and_values_are_not(reference: TransformersReference) -> None:
    whole = sequences()
    here, there = (
        reference.forward(whole).rows,
        reference.forward(replace(whole, position_ids=whole.position_ids + 100)).rows,
    )
    assert [array.shape for array in here] == [(BRANCHES, 2, LENGTH, 32)] * 10
    assert np.abs(here[0] - there[0]).max() > 0.1
    np.testing.assert_array_equal(here[1], there[1])
    # Rotation is relative: shifting all positions by the same distance changes nothing after attention.
    np.testing.assert_allclose(here[9], there[9], atol=1e-3)


def test_other_architectures_have_no_reference_model(manifest: Manifest) -> None:
    with pytest.raises(BadInputError, match="architecture 'unheard-of'"):
        network_from_checkpoint(msgspec.structs.replace(manifest, architecture="unheard-of"), CHECKPOINT, ADAPTER)


def test_tensors_must_fit(manifest: Manifest, tmp_path: Path) -> None:
    copy = tmp_path / "base"
    shutil.copytree(CHECKPOINT, copy)
    config = copy / "config.json"
    config.write_text(config.read_text().replace('"num_hidden_layers": 5', '"num_hidden_layers": 6'))
    with pytest.raises(BadInputError, match="do not fit transformers' Qwen2"):
        network_from_checkpoint(manifest, copy, ADAPTER)
