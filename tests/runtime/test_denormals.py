"""Denormal numbers are zero only while a forward runs on the CPU."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from tests.runtime.random_windows import random_batch
from tests.runtime.sequential import sequential

from lopa.runtime.bundle import Bundle
from lopa.runtime.contract.model_part import whole_model
from lopa.runtime.denormals import can_change, denormals_as_zero
from lopa.runtime.sessions.onnxruntime_graph import open_part_graph
from lopa.runtime.sessions.session import open_session

pytestmark = pytest.mark.skipif(not can_change(), reason="implemented for x86-64 Linux only")


def _product() -> float:
    """Return the product of two normal numbers, which is denormal."""
    return float(np.float32(1.2e-38) * np.float32(0.1))


def test_zero_only_within_the_context() -> None:
    assert _product() > 0
    with denormals_as_zero():
        assert _product() == 0
    assert _product() > 0


def test_an_error_restores_the_state() -> None:
    with pytest.raises(KeyError), denormals_as_zero():
        raise KeyError
    assert _product() > 0


def test_operands_are_also_flushed_to_zero() -> None:
    denormal = np.float32(1e-40)
    with denormals_as_zero():
        assert denormal * np.float32(1e10) == 0
    assert denormal * np.float32(1e10) > 0


def test_a_forward_uses_the_context(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    original = ort.InferenceSession.run_with_iobinding

    def watched(*arguments: Any) -> None:
        seen.append(_product())
        original(*arguments)

    monkeypatch.setattr(ort.InferenceSession, "run_with_iobinding", watched)
    session = open_session(Bundle.open(tiny_bundle), "cpu", threads=1)
    sequential(session).forward(random_batch(np.random.default_rng(0), [1], 2, 6, 3))
    session.close()
    assert seen == [0.0]
    assert _product() > 0


def test_threads_of_the_engine_use_it(tiny_bundle: Path) -> None:
    bundle = Bundle.open(tiny_bundle)
    session = open_part_graph(bundle, whole_model(bundle.manifest.dimensions.layers), "cpu", 2)
    assert session.get_session_options().get_session_config_entry("session.set_denormal_as_zero") == "1"


def test_opening_a_session_restores_the_threads_state(tiny_bundle: Path) -> None:
    """ONNX Runtime changes the state for the first session of a process."""
    program = (
        "import sys, numpy; from lopa.runtime import Decoder; Decoder.open(sys.argv[1], ['cpu'], threads=1); "
        "print(numpy.float32(1.2e-38) * numpy.float32(0.1) > 0)"
    )
    ran = subprocess.run([sys.executable, "-c", program, tiny_bundle], capture_output=True, text=True, check=True)
    assert ran.stdout == "True\n"
