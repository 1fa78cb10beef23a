"""A forward over bound memory: an exception of a signal handler during binding leaves nothing half bound."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lopa.runtime import Decoder

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
