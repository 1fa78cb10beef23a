"""Engines for Qualcomm NPUs, built and run in QNN's emulator: `make test-qnn`. A forward takes seconds."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.qnn.engines import SMALL
from tests.runtime.random_windows import random_batch
from tests.runtime.sequential import sequential

from lopa.export.qnn.build import engine_from_bundle
from lopa.export.qnn.fixed_graph import fixed_graph
from lopa.runtime import Decoder
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import bucket_from_sizes
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.qnn.qnn_manifest import SOCS, StoredQnnEngine
from lopa.runtime.sessions.session import Session, open_session
from lopa.runtime.text.tokenizer import Tokenizer

pytestmark = pytest.mark.qnn
pytest.importorskip("onnxruntime_qnn", reason="needs onnxruntime-qnn: make test-qnn")

PROMPT = "Question: There are 9 baskets at home, and each holds 6 candies. How many candies are there now?\nAnswer:"
LARGE = bucket_from_sizes(Sizes(1, 2, 128, 192, 64), 3.0)
ROWS, LOGPROBS, ENTROPY = 0.1, 0.15, 0.05
"""Tolerances: more than twice the largest errors of this network in float16, 0.03, 0.06 and 0.016."""


@pytest.fixture(scope="module")
def bundle(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return Bundle.open(Path(shutil.copytree(tiny_bundle, tmp_path_factory.mktemp("qnn") / "bundle")))


@pytest.fixture(scope="module")
def engine(bundle: Bundle) -> StoredQnnEngine:
    buckets = [bucket_from_sizes(Sizes(1, 1, 64, 64, 64), 1.0), LARGE]
    return engine_from_bundle(bundle, SOCS["SM8650"], buckets, lambda _name: None).found


@pytest.fixture
def sessions(bundle: Bundle, engine: StoredQnnEngine) -> Iterator[tuple[Session, Session]]:
    assert engine.fits(bundle)
    pair = open_session(bundle, "qnn"), open_session(bundle, "numpy")
    yield pair
    for session in pair:
        session.close()


def test_a_build(bundle: Bundle, engine: StoredQnnEngine) -> None:
    assert sorted(path.name for path in engine.folder.iterdir()) == [
        "bucket-0.onnx",
        "bucket-0_qnn.bin",
        "bucket-1.onnx",
        "bucket-1_qnn.bin",
        "engine.json",
    ]
    again = engine_from_bundle(
        bundle, SOCS["SM8650"], [each.bucket for each in engine.engine.buckets], lambda _name: pytest.fail("compiled")
    )
    assert again.cached
    assert again.found.engine == engine.engine


def test_a_damaged_engine_is_built_again(bundle: Bundle, tmp_path: Path) -> None:
    copy = Bundle.open(
        Path(shutil.copytree(bundle.path, tmp_path / "bundle", ignore=shutil.ignore_patterns("engines")))
    )
    found = engine_from_bundle(copy, SOCS["SM8650"], [SMALL], lambda _name: None).found
    binary = found.folder / "bucket-0_qnn.bin"
    intact = binary.read_bytes()
    binary.write_bytes(intact[:-1])
    again = engine_from_bundle(copy, SOCS["SM8650"], [SMALL], lambda _name: None)
    assert not again.cached
    assert len(binary.read_bytes()) == len(intact)


def test_the_graph_has_float_masks_and_no_positions(bundle: Bundle) -> None:
    model = fixed_graph(bundle, SMALL)
    masks = {node.inputs[3] for node in model.graph if node.op_type == "Attention"}
    producers = [None if mask is None else mask.producer() for mask in masks]
    assert [None if node is None else node.op_type for node in producers] == ["Where"]
    assert "position_ids" not in [value.name for value in model.graph.inputs]
    assert not [node for node in model.graph if node.op_type in ("Cos", "Sin")]


@pytest.mark.parametrize("start", [0, 1000])
def test_forwards_match_the_reference(sessions: tuple[Session, Session], start: int) -> None:
    """Without angles from the host, 10 of 32 best tokens at positions from 1,000 were wrong."""
    assert_forwards_match(sessions, start)


@pytest.mark.parametrize(
    ("options", "megabytes"),
    [({"dtype": "float16"}, 5.5), ({"quantize": "int8"}, 3.7), ({"quantize": "int4"}, 2.3)],
    ids=["float16", "int8", "int4"],
)
def test_other_precisions(
    options: dict[str, str], megabytes: float, export_tiny: Callable[..., Path], tmp_path: Path
) -> None:
    """Weights keep their bits in the context binary. Every node is on the NPU, or the build would fail.

    The numpy reference rounds rows of int8 products to 8 bits, the NPU to 16.
    """
    bundle = Bundle.open(shutil.copytree(export_tiny(with_logits=False, **options), tmp_path / "bundle"))
    found = engine_from_bundle(bundle, SOCS["SM8650"], [LARGE], lambda _name: None).found
    assert (found.folder / "bucket-0_qnn.bin").stat().st_size < megabytes * 1e6
    pair = open_session(bundle, "qnn"), open_session(bundle, "numpy")
    assert_forwards_match(pair, 1000)
    for session in pair:
        session.close()


def assert_forwards_match(sessions: tuple[Session, Session], start: int) -> None:
    """Compare two forwards on random windows."""
    rng = np.random.default_rng(start)
    for number, (width, branches) in enumerate([(30, 2), (40, 1)]):
        batch = random_batch(rng, [1], branches, width, 16, starts=start + 30 * number)
        ours, right = (sequential(session).forward(batch) for session in sessions)
        np.testing.assert_array_equal(ours.topk_ids[..., 0], right.topk_ids[..., 0])
        assert np.abs(ours.topk_logprobs - right.topk_logprobs).max() < LOGPROBS
        assert np.abs(ours.entropy - right.entropy).max() < ENTROPY
        rows = (sequential(session).read_rows(1, branches - 1, width).layers for session in sessions)
        assert max(np.abs(one - other).max() for one, other in zip(*rows, strict=True)) < ROWS
        for session in sessions:
            sequential(session).commit(1, branches - 1, 30)


def test_a_decode(bundle: Bundle, engine: StoredQnnEngine) -> None:
    assert engine.fits(bundle)
    tokens = []
    for device in ("cpu", "qnn"):
        session = open_session(bundle, device)
        decoder = Decoder(bundle, session, Tokenizer.open(bundle))
        tokens.append(list(decoder.generate(PROMPT, strategy="d2f", max_new_tokens=32).token_ids))
        session.close()
    assert tokens[0]
    assert tokens[1] == tokens[0]
