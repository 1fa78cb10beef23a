"""The real peers with a small checkpoint: all agree, and other weights are detected (`make test-peers`)."""

import os
from pathlib import Path

import pytest
from tests.tools.miniature import MINIATURE
from tools.checkpoint.make import checkpoint_from_likeness
from tools.peers.gguf_file import write_gguf_of_checkpoint
from tools.peers.materials import Materials, prepare_materials
from tools.peers.rounds import measure_piece
from tools.peers.sides import SIDES

from lopa.bench.forward.work import ForwardShape
from lopa.runtime.errors import CheckFailedError

PREPARED = os.environ.get("LOPA_PEERS")
SHAPE = ForwardShape(branches=3, window=16, prefix=40, wanted=16)
pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(PREPARED is None, reason="set LOPA_PEERS to a folder made by python -m tools.peers prepare"),
]


@pytest.fixture(scope="module")
def materials(tmp_path_factory: pytest.TempPathFactory) -> Materials:
    assert PREPARED is not None
    folder = tmp_path_factory.mktemp("peers")
    (folder / "llama.cpp").symlink_to(Path(PREPARED).resolve() / "llama.cpp")
    assert prepare_materials(Materials(folder), MINIATURE, lambda _: None) == {}
    return Materials(folder)


def test_every_side_agrees_and_is_timed(materials: Materials) -> None:
    piece = measure_piece(materials, SIDES, SHAPE, threads=1, rounds=2, command="")
    assert {side.name for side in piece.sides} | set(piece.left_out) == {side.name for side in SIDES}
    assert all("bf16" in name for name in piece.left_out)  # on CPUs without bfloat16
    assert all(len(side.seconds) == 2 and min(side.seconds) > 0 for side in piece.sides)


def test_other_weights_are_detected(materials: Materials, tmp_path: Path) -> None:
    checkpoint_from_likeness(MINIATURE, tmp_path / "other", seed=1)
    right = materials.gguf("f32")
    kept = right.rename(tmp_path / "right.gguf")
    write_gguf_of_checkpoint(tmp_path / "other", right)
    try:
        llama = [side for side in SIDES if side.computes == "f32" and side.peer == "llama.cpp"]
        with pytest.raises(CheckFailedError, match=r"llama\.cpp F32 disagrees with"):
            measure_piece(materials, llama, SHAPE, threads=1, rounds=1, command="")
    finally:
        kept.rename(right)
