"""The real peers with a small checkpoint: all agree, and other weights are detected (`make test-peers`)."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.tools.miniature import MINIATURE
from tools.checkpoint.make import checkpoint_from_likeness
from tools.peers.gguf_file import matrix_bytes, write_gguf_of_checkpoint
from tools.peers.materials import Materials, prepare_materials
from tools.peers.measured import Peaks
from tools.peers.rounds import measure_opening, measure_piece, setting_now
from tools.peers.sides import SIDES, needed_materials

from lopa.bench.forward.work import ForwardShape
from lopa.runtime.errors import CheckFailedError, MissingBackendError

PREPARED = os.environ.get("LOPA_PEERS")
SHAPE = ForwardShape(branches=3, window=16, prefix=40, wanted=16)
ALONE = replace(SHAPE, branches=1)
pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(PREPARED is None, reason="set LOPA_PEERS to a folder made by python -m tools.peers prepare"),
]


def may_be_missing(name: str) -> bool:
    """CPUs without bfloat16 lack its sides, and a form of int4 may not exist."""
    return "bf16" in name or name == "ours int4 mapped"


@pytest.fixture(scope="module")
def materials(tmp_path_factory: pytest.TempPathFactory) -> Materials:
    assert PREPARED is not None
    folder = tmp_path_factory.mktemp("peers")
    (folder / "genai").mkdir()
    for part in ("llama.cpp", "genai/package"):
        (folder / part).symlink_to(Path(PREPARED).resolve() / part)
    assert prepare_materials(Materials(folder), MINIATURE, needed_materials(SIDES), lambda _: None) == {}
    return Materials(folder)


@pytest.mark.parametrize("shape", [SHAPE, ALONE])
def test_every_side_agrees_and_is_timed(materials: Materials, shape: ForwardShape) -> None:
    piece = measure_piece(materials, SIDES, shape, threads=1, rounds=2, command="")
    able = {side.name for side in SIDES if side.computes_shape(shape)}
    assert {side.name for side in piece.sides} | set(piece.left_out) == able
    assert all(map(may_be_missing, piece.left_out))
    assert all(len(side.step.seconds) == 2 and min(side.step.seconds) > 0 for side in piece.sides)
    without_prefill = {side.name for side in piece.sides if side.costs.prefill_seconds is None}
    assert without_prefill == {side.name for side in SIDES if side.attention == "whole"} & able


def test_every_side_can_be_opened_alone_with_several_shapes(materials: Materials) -> None:
    setting = setting_now(materials, 1, "", Peaks(1.0, 1.0, 1.0, 1.0))
    for side in SIDES:
        try:
            opening = measure_opening(materials, side, [ALONE, SHAPE], 0, 2, setting)
        except MissingBackendError:
            assert may_be_missing(side.name)
            continue
        assert [step.shape for step in opening.steps] == [each for each in (ALONE, SHAPE) if side.computes_shape(each)]
        assert all(len(step.seconds) == 2 for step in opening.steps)
        assert opening.costs.memory is not None
        assert opening.costs.memory.private > 0


def test_files_of_llama_cpp_have_the_counted_bytes(materials: Materials) -> None:
    """The quantizer's bytes per row are those that side_work counts."""
    embedding = {"q4_0": 18 / 32, "q8_0": 34 / 32}
    for kind, width in embedding.items():
        counted = matrix_bytes(MINIATURE.dimensions, kind) + width * 640 * 64
        others = materials.gguf(kind).stat().st_size - counted  # the head, norms and biases
        assert 0 < others < 10_000


def test_other_weights_are_detected(materials: Materials, tmp_path: Path) -> None:
    checkpoint_from_likeness(MINIATURE, tmp_path / "other", seed=1)
    right = materials.gguf("f32")
    kept = right.rename(tmp_path / "right.gguf")
    write_gguf_of_checkpoint(tmp_path / "other", right, "f32", materials.llama_side)
    try:
        llama = [side for side in SIDES if side.name == "llama.cpp F32"]
        with pytest.raises(CheckFailedError, match=r"llama\.cpp F32 disagrees with"):
            measure_piece(materials, llama, SHAPE, threads=1, rounds=1, command="")
    finally:
        kept.rename(right)
