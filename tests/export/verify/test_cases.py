"""Inputs of a check: the same tokens in pieces and in complete sequences, reproducible, and of every kind."""

from pathlib import Path

import numpy as np
import pytest

from lopa.export.verify.cases import SHAPES, Case, cases_from_manifest
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract.forward import check_batch


@pytest.fixture(scope="module")
def cases(tiny_bundle: Path) -> list[Case]:
    return list(cases_from_manifest(Bundle.open(tiny_bundle).manifest))


def test_pieces_fit_the_contract(cases: list[Case]) -> None:
    assert [case.shape for case in cases] == list(SHAPES)
    for case in cases:
        batch = case.window
        check_batch(batch)
        assert batch.input_ids.shape == (len(case.shape.prefixes), case.shape.branches, case.shape.width)
        assert batch.logits_index.shape[-1] == case.shape.queries
        assert batch.input_ids.max() < 1024
        for slot, chunks in enumerate(case.shape.prefixes):
            pieces = list(case.prefix_batches(slot))
            for piece in pieces:
                check_batch(piece)
            assert tuple(piece.input_ids.shape[-1] for piece in pieces) == chunks
            assert {piece.requests for piece in pieces} <= {(batch.requests[slot],)}


def test_complete_sequences_are_the_pieces_in_order(cases: list[Case]) -> None:
    for case in cases:
        for slot, whole in enumerate(case.sequences):
            for branch in range(case.shape.branches):
                pieces = list(case.prefix_batches(slot))
                ids = [piece.input_ids[0, 0] for piece in pieces] + [case.window.input_ids[slot, branch]]
                positions = [piece.position_ids[0, 0] for piece in pieces] + [case.window.position_ids[slot, branch]]
                np.testing.assert_array_equal(whole.input_ids[branch], np.concatenate(ids))
                np.testing.assert_array_equal(whole.position_ids[branch], np.concatenate(positions))
                assert (np.diff(whole.position_ids[branch]) > 0).all()
                np.testing.assert_array_equal(
                    whole.input_ids[branch, whole.wanted[branch]],
                    case.window.input_ids[slot, branch, case.window.logits_index[slot, branch]],
                )


def test_complete_masks_match_those_of_the_pieces(cases: list[Case]) -> None:
    for case in cases:
        for slot, whole in enumerate(case.sequences):
            committed = sum(case.shape.prefixes[slot])
            assert whole.mask[:, committed:, :committed].all()
            assert not whole.mask[:, :committed, committed:].any()
            np.testing.assert_array_equal(whole.mask[:, committed:, committed:], case.window.window_mask[slot])
            start = 0
            for rows in case.shape.prefixes[slot]:
                end = start + rows
                assert whole.mask[:, start:end, :end].all()
                assert not whole.mask[:, start:end, end:].any()
                start = end


def test_every_row_sees_itself_and_padding_is_inert(cases: list[Case]) -> None:
    padding_rows = 0
    for case in cases:
        mask = case.window.window_mask
        assert np.diagonal(mask, axis1=-2, axis2=-1).all()
        assert case.shape.padded or case.shape.mask == "random" or mask[..., 0].all()
        if case.shape.padded:
            others = mask & ~np.eye(case.shape.width, dtype=np.bool_)
            alone = ~others.any(axis=-1)
            last = np.argmax(np.cumsum(~alone, axis=-1), axis=-1)  # the last row that attends to another row
            for index in np.ndindex(*mask.shape[:2]):
                behind = slice(int(last[index]) + 1, None)
                assert not others[index][:, behind].any() or case.shape.mask == "random"
                padding_rows += int(alone[index][behind].sum())
    assert padding_rows > 0


def test_equal_seeds_give_equal_cases_and_other_seeds_others(tiny_bundle: Path) -> None:
    manifest = Bundle.open(tiny_bundle).manifest
    first, again, other = (list(cases_from_manifest(manifest, seed=seed)) for seed in (3, 3, 4))
    assert all((a.window.input_ids == b.window.input_ids).all() for a, b in zip(first, again, strict=True))
    assert any((a.window.input_ids != b.window.input_ids).any() for a, b in zip(first, other, strict=True))
    assert any((a.window.temperature != b.window.temperature).any() for a, b in zip(first, other, strict=True))
