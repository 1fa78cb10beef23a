"""The reference of mixtures of experts agrees with the numpy session, which has a cache and reads a bundle."""

from pathlib import Path

import pytest
from tests.tools.miniature import MINIATURES
from tools.checkpoint.make import checkpoint_from_likeness
from tools.peers.agreement import SideAnswer, agreement_of
from tools.peers.python_side import SessionForwards
from tools.peers.reference import reference_answers
from tools.peers.side_work import work_of_side
from tools.peers.sides import SPARSE_BASELINE, baseline_of_network, sides_of_sparse_models
from tools.peers.tokens import tokens_of_shape

from lopa.bench.forward.work import ForwardShape
from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.runtime.sessions.session import open_session

pytestmark = pytest.mark.slow

SPARSE = [family for family, likeness in MINIATURES.items() if likeness.dimensions.moe is not None]


@pytest.mark.parametrize("family", SPARSE)
def test_it_agrees_with_the_numpy_session(tmp_path: Path, family: str) -> None:
    sizes = MINIATURES[family].dimensions
    checkpoint_from_likeness(MINIATURES[family], tmp_path / "checkpoint")
    bundle = bundle_from_checkpoint(tmp_path / "checkpoint", tmp_path / "bundle")
    shapes = [ForwardShape(1, 1, 24, 1), ForwardShape(3, 8, 24, 8)]
    cases = [(shape, "cached") for shape in shapes]
    answers = reference_answers(tmp_path / "checkpoint", cases, 1, tmp_path / "answers")
    assert reference_answers(tmp_path / "checkpoint", cases, 1, tmp_path / "answers").keys() == answers.keys()
    session = open_session(bundle, "numpy")
    try:
        for case in cases:
            shape, forwards = case[0], SessionForwards(session)
            tokens = tokens_of_shape(sizes.vocab_size, shape)
            forwards.prefix(tokens[: shape.prefix])
            forwards.windows(tokens[shape.prefix :].reshape(shape.branches, shape.window))
            forwards.run()
            found = forwards.found
            assert found is not None
            answer = SideAnswer(
                found.topk_ids[0, ..., 0].ravel(), found.topk_logprobs[0, ..., 0].ravel(), found.entropy[0].ravel()
            )
            agreement = agreement_of(answer, answers[case])
            assert agreement.same_best == 1
            assert agreement.logprob_error < 1e-4
            assert agreement.entropy_error < 1e-4
    finally:
        session.close()
    one, many = (answers[case].touched for case in cases)
    assert one == 2 / 8  # a row has 2 of the 8 experts
    assert many is not None
    assert 0.5 < many <= 1
    assert len(set(answers[cases[1]].best.tolist())) >= 8, "rows must not all predict the same"


def test_bytes_are_those_of_the_touched_experts() -> None:
    sizes = MINIATURES["llada2-moe"].dimensions
    assert baseline_of_network(sizes) is SPARSE_BASELINE
    assert {side.peer for side in sides_of_sparse_models()} == {"lopa", "llama.cpp", "openvino"}
    shape = ForwardShape(1, 8, 40, 8)
    experts = 8 * 3 * 64 * 32  # one of the two layers is sparse
    for side in sides_of_sparse_models():
        every, half, expected = (work_of_side(side, sizes, shape, touched) for touched in (1.0, 0.5, None))
        weight_bytes = 18 / 32 if side.peer == "llama.cpp" else 0.5 + 4 / 32
        assert every.matrix_bytes is not None
        assert half.matrix_bytes == every.matrix_bytes - experts // 2 * weight_bytes
        assert expected.touched == pytest.approx(1 - 0.75**8)
        assert every.operations == half.operations
