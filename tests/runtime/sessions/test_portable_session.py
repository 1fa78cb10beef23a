"""Sessions over a portable graph compared with the numpy reference: padding, prefixes and several requests."""

from collections.abc import Callable
from pathlib import Path

import onnxruntime as ort
import pytest
from tests.runtime.check_cases import assert_random_windows_agree
from tests.runtime.sessions.test_onnxruntime_session import changed_bundle

from lopa.runtime.errors import BadInputError
from lopa.runtime.sessions.session import Session, open_session


def test_random_windows_match_the_reference(tiny_portable: Path, opened: Callable[[Path, str], Session]) -> None:
    """Random (R, B, W, Q) including ones, with windows that end in padding and prefixes that grow by commits."""
    sessions = (opened(tiny_portable, device) for device in ("cpu", "numpy"))
    assert_random_windows_agree(*sessions, seed=0, turns=8)


def test_portable_graph_with_standard_manifest_raises(tiny_portable: Path, tmp_path: Path) -> None:
    changes = {"dialect": "standard", "rotary_inputs": ["standard"]}
    bundle = changed_bundle(tiny_portable, tmp_path / "copy", lambda manifest: manifest.update(changes))
    with pytest.raises(BadInputError, match=r"the inputs of .*past_key_values'"):
        open_session(bundle, "cpu")


def test_bfloat16_raises(tiny_portable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = changed_bundle(tiny_portable, tmp_path / "copy", lambda manifest: manifest.update(dtype="bfloat16"))
    with pytest.raises(BadInputError, match="a portable graph in bfloat16"):
        open_session(bundle, "cpu")
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    with pytest.raises(BadInputError, match="a portable graph in bfloat16") as caught:
        open_session(bundle, "cuda:0")
    assert "--dialect both" in caught.value.remedy


def test_unlisted_second_graph_raises(tiny_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"has 'second\.onnx'"):
        changed_bundle(tiny_bundle, tmp_path / "other", lambda manifest: manifest.update(portable_graph="second.onnx"))
