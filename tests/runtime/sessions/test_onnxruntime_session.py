"""ONNX Runtime sessions, and some of OpenVINO, compared with the numpy reference, and device errors."""

import json
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from tests.runtime.check_cases import assert_random_windows_agree
from tests.runtime.random_windows import (
    random_batch,
)
from tests.runtime.sequential import sequential

from lopa.runtime import Decoder
from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import BadInputError, MissingBackendError
from lopa.runtime.sessions.session import Session, open_session

HAS_CUDA = "CUDAExecutionProvider" in ort.get_available_providers()


@pytest.mark.parametrize("seed", range(2))
def test_random_windows_match_the_reference(
    tiny_bundle_logits: Path, opened: Callable[[Path, str], Session], seed: int
) -> None:
    """Random (R, B, W, Q) including ones, with prefixes that grow by commits over several tiles."""
    sessions = (opened(tiny_bundle_logits, device) for device in ("cpu", "numpy"))
    assert_random_windows_agree(*sessions, seed=seed, turns=10)


on_both = pytest.mark.parametrize("device", ["cpu", "openvino:CPU"])


@pytest.mark.skipif(HAS_CUDA, reason="the installed ONNX Runtime has the CUDA provider")
def test_missing_cuda_provider_raises(tiny_bundle: Path) -> None:
    with pytest.raises(MissingBackendError, match="onnxruntime-gpu") as caught:
        open_session(Bundle.open(tiny_bundle), "cuda:0")
    assert caught.value.exit_code == 3
    assert "CPUExecutionProvider" in caught.value.received


def changed_bundle(source: Path, target: Path, change: Callable[[dict[str, Any]], None]) -> Bundle:
    """Return a copy of the bundle whose manifest was edited by `change`."""
    shutil.copytree(source, target)
    path = target / "manifest.json"
    manifest = json.loads(path.read_bytes())
    change(manifest)
    path.write_text(json.dumps(manifest), encoding="utf-8")
    return Bundle.open(target)


@on_both
def test_corrupt_graph_raises(device: str, tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = changed_bundle(tiny_bundle, tmp_path / "copy", lambda _: None)
    bundle.graph.write_bytes(np.random.default_rng(0).bytes(bundle.graph.stat().st_size))
    with pytest.raises(BadInputError, match=r"cannot (open|compile)") as caught:
        open_session(bundle, device)
    assert str(bundle.graph) in caught.value.received


@on_both
def test_graph_that_contradicts_the_manifest_raises(device: str, tiny_bundle: Path, tmp_path: Path) -> None:
    def fewer_layers(manifest: dict[str, Any]) -> None:
        manifest["dimensions"]["layers"] = 4

    def more_outputs(manifest: dict[str, Any]) -> None:
        manifest["with_logits"] = True

    with pytest.raises(BadInputError, match=r"past_key_values\.4\.key"):
        open_session(changed_bundle(tiny_bundle, tmp_path / "fewer", fewer_layers), device)
    with pytest.raises(BadInputError, match=r"the outputs of .*logits"):
        open_session(changed_bundle(tiny_bundle, tmp_path / "more", more_outputs), device)


def test_thread_count_is_passed_to_onnx_runtime(tiny_bundle: Path, tmp_path: Path) -> None:
    """The thread count is in the session options; 0 is ONNX Runtime's choice. The copy is not open elsewhere."""
    bundle = changed_bundle(tiny_bundle, tmp_path / "copy", lambda _: None)
    seen: list[int] = []
    original = ort.InferenceSession

    class Recorded(original):  # type: ignore[misc, valid-type]
        def __init__(self, path: str, options: ort.SessionOptions, **rest: Any) -> None:
            seen.append(options.intra_op_num_threads)
            super().__init__(path, options, **rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ort, "InferenceSession", Recorded)
        for threads in (1, 2, None):
            open_session(bundle, "cpu", threads=threads).close()
    assert seen == [1, 2, 0]


def test_memory_is_bounded_by_the_largest_window(tiny_bundle: Path, opened: Callable[[Path, str], Session]) -> None:
    """The bound memory is 10 arrays x 5 branches x 2 heads x 32 floats per row, plus one mask byte per pair of rows."""
    rng = np.random.default_rng(0)
    session = opened(tiny_bundle, "cpu")
    largest = 5 * 400 * (10 * 2 * 32 * 4 + 400)
    tracemalloc.start()
    try:
        for width in (50, 100, 200, 300, 400, 350, 120):
            sequential(session).forward(random_batch(rng, [1], 5, width, 1))
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert largest < held < 1.2 * largest


PROMPT = "Question: Sam owns 3 balloons. How many balloons does Sam have?\nAnswer:"


@pytest.mark.parametrize("call", ["bind_inputs", "bind_outputs", "unbind_inputs"])
def test_the_forward_after_a_call_that_was_interrupted(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The call ends after its work, then the same forward runs again with its arrays."""
    with Decoder.open(tiny_bundle, threads=1) as decoder:
        forward: Any = decoder.session._forward  # type: ignore[attr-defined]
        binding, runs = forward._binding, list[Any]()
        original, run_part = getattr(binding, call), forward.run_part
        monkeypatch.setattr(forward, "run_part", lambda *arguments: runs.append(arguments) or run_part(*arguments))
        decoder.generate(PROMPT, max_new_tokens=12)
        first, last = runs[0], runs[-1]
        expected = {name: array.copy() for name, array in run_part(*last).items()}

        def interrupted(*arguments: Any) -> None:
            original(*arguments)
            raise TimeoutError("late")

        with monkeypatch.context() as patched:
            patched.setattr(binding, call, interrupted)
            with pytest.raises(TimeoutError):
                forward.forget_prefix() if call == "unbind_inputs" else run_part(*first)
        found = run_part(*last)
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[name], array) for name, array in expected.items())
