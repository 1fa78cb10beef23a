"""Openings of our own sides: costs, agreement, environment and disagreement."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.tools.miniature import MINIATURE
from tools.checkpoint.make import checkpoint_from_likeness
from tools.peers.materials import Materials, prepare_materials
from tools.peers.measured import Opening, Peaks
from tools.peers.rounds import measure_opening, setting_now
from tools.peers.sides import SIDES, Side, needed_materials

from lopa.bench.forward.work import ForwardShape
from lopa.runtime.errors import CheckFailedError, MissingBackendError

SHAPES = [ForwardShape(branches, 8, 20, 8) for branches in (1, 3)]
PACKED, INT8 = (next(side for side in SIDES if side.name == name) for name in ("ours int4 packed", "ours int8"))


@pytest.fixture(scope="module")
def materials(tmp_path_factory: pytest.TempPathFactory) -> Materials:
    found = Materials(tmp_path_factory.mktemp("rounds"))
    prepare_materials(found, MINIATURE, needed_materials([PACKED, INT8]), lambda _: None)
    return found


def opened(materials: Materials, side: Side) -> Opening:
    setting = setting_now(materials, 1, "a command", Peaks(1.0, 1.0, 1.0, 1.0))
    return measure_opening(materials, side, SHAPES, 3, 2, setting)


def test_an_opening_has_costs_and_a_step_per_shape(materials: Materials) -> None:
    found = opened(materials, INT8)
    assert (found.side, found.round, found.costs.prefix) == ("ours int8", 3, 20)
    assert found.costs.open_seconds > found.costs.first_seconds > 0
    assert found.costs.prefill_seconds is not None
    assert [step.shape for step in found.steps] == SHAPES
    assert all(len(step.seconds) == 2 and step.agreement.same_best > 0.6 for step in found.steps)


def test_a_form_of_int4_that_does_not_exist_is_skipped(materials: Materials) -> None:
    with pytest.raises(MissingBackendError, match="LOPA_WEIGHTS='nonsense'"):
        opened(materials, replace(PACKED, weights="nonsense"))


def test_another_attention_is_detected(materials: Materials) -> None:
    """Our windows see all their rows, so they disagree with a causal decoder."""
    with pytest.raises(CheckFailedError, match="ours int8 disagrees"):
        opened(materials, replace(INT8, attention="causal"))


def test_other_weights_are_detected(materials: Materials, tmp_path: Path) -> None:
    checkpoint_from_likeness(MINIATURE, tmp_path / "other", seed=1)
    given = {"int8": materials.bundle("int8")}
    other = Materials(tmp_path / "work", tmp_path / "other", given)
    other.folder.mkdir()
    with pytest.raises(CheckFailedError, match="ours int8 disagrees"):
        opened(other, INT8)
