"""Graphs shared by sessions of one process: memory, threads, lifetime and bundle identity."""

import gc
import shutil
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from tests.runtime.random_windows import assert_close, random_batch
from tests.runtime.sequential import sequential

from lopa.runtime.bundle import Bundle
from lopa.runtime.sessions.session import Session, open_session


@pytest.fixture
def copied_bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    """Return a copied bundle that no other test has open."""
    return Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))


@pytest.fixture
def opened_graphs() -> Iterator[list["weakref.ref[Any]"]]:
    """Record weak references to the graphs that ONNX Runtime opens during the test, in order."""
    seen: list[weakref.ref[Any]] = []
    original = ort.InferenceSession

    class Recorded(original):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any, **named: Any) -> None:
            seen.append(weakref.ref(self))
            super().__init__(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ort, "InferenceSession", Recorded)
        yield seen


def opened(path: Path, threads: int | None = 1) -> Session:
    return open_session(Bundle.open(path), "cpu", threads=threads)


def test_sessions_opened_at_once_share_one_graph(copied_bundle: Path, opened_graphs: list[Any]) -> None:
    with ThreadPoolExecutor(4) as pool:
        sessions = list(pool.map(lambda _: opened(copied_bundle), range(4)))
    assert len(opened_graphs) == 1
    for session in sessions:
        session.close()


def test_graph_is_freed_with_its_last_session(copied_bundle: Path, opened_graphs: list[Any]) -> None:
    batch = random_batch(np.random.default_rng(0), [1], 2, 9, 3)
    first, second = opened(copied_bundle), opened(copied_bundle)
    expected = sequential(first).forward(batch).topk_logprobs
    first.close()
    gc.collect()
    assert opened_graphs[0]() is not None
    assert_close(sequential(second).forward(batch).topk_logprobs, expected)
    second.close()
    gc.collect()
    assert opened_graphs[0]() is None
    opened(copied_bundle).close()
    assert len(opened_graphs) == 2


def test_replaced_bundle_opens_another_graph(copied_bundle: Path, opened_graphs: list[Any]) -> None:
    """Overwriting an export renames a new folder to the old path, even if the old one is in use."""
    rng = np.random.default_rng(0)
    batch = random_batch(rng, [1], 2, 9, 3)
    old = opened(copied_bundle)
    before = sequential(old).forward(batch)
    copied_bundle.rename(copied_bundle.with_name("old"))
    shutil.copytree(copied_bundle.with_name("old"), copied_bundle)
    bundle = Bundle.open(copied_bundle)
    weights = np.fromfile(bundle.weights, np.float32)
    (weights * np.float32(0.9)).tofile(bundle.weights)
    new = opened(copied_bundle)
    assert len(opened_graphs) == 2
    assert np.abs(sequential(new).forward(batch).topk_logprobs - before.topk_logprobs).max() > 0.01
    assert_close(sequential(old).forward(batch).topk_logprobs, before.topk_logprobs)
    old.close()
    new.close()
