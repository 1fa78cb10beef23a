"""Forwards with results in a folder for Polygraphy: inputs.json, outputs.json, and rules for their comparison.

Polygraphy is imported only when a folder is checked or written.
"""

import importlib.util
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lopa.export.replay import compare
from lopa.export.replay.answered_forward import AnsweredForward, Array, Arrays, inputs_of_graph, outputs_of_graph
from lopa.runtime.bundle.manifest import Dialect
from lopa.runtime.contract import stored_dtype
from lopa.runtime.contract.rotary import RotaryAngles
from lopa.runtime.errors import BadInputError, MissingBackendError, errors_as_bad_input
from lopa.runtime.install_hint import pip_install

_BFLOAT16_BITS = stored_dtype("bfloat16")


class ComparisonRule(msgspec.Struct, frozen=True):
    """Tolerances of lopa.export.replay.compare."""

    reference: str
    """Device of the expected results."""
    tolerance: float
    """Relative tolerance for every output of one forward."""
    by_rms: bool
    """True if the tolerance limits the root mean square of the errors, not the largest error."""
    margin: float | None
    """Lead in nats from which the first token must be the expected one; None to check probabilities only."""


def check_folder(folder: Path, dtype: str) -> None:
    """Raise BadInputError if `folder` exists, MissingBackendError if this machine cannot save forwards of `dtype`."""
    with errors_as_bad_input(str(folder), expected="a valid path", remedy="choose another"):
        exists = folder.resolve().exists()
    if exists:
        raise BadInputError(
            f"{folder} exists",
            expected="a new folder for the forwards",
            remedy="choose another, or remove it",
        )
    if importlib.util.find_spec("polygraphy") is None:
        raise MissingBackendError(
            "polygraphy is not installed",
            expected="NVIDIA's Polygraphy, which writes the forwards",
            remedy=pip_install("polygraphy"),
        )
    if dtype == "bfloat16" and importlib.util.find_spec("torch") is None:
        raise MissingBackendError(
            "torch is not installed",
            expected="torch for a bfloat16 bundle: Polygraphy stores such numbers as torch tensors",
            remedy=pip_install("export"),
        )


def write_forwards(
    folder: Path,
    forwards: Sequence[AnsweredForward],
    dialect: Dialect,
    rule: ComparisonRule,
    rotary: RotaryAngles | None = None,
) -> None:
    """Write `forwards`, at least one, for the graph of `dialect` to the existing folder `folder`.

    With `rotary`, the graph takes its cosines and sines in place of positions. It needs several times the memory of the
    forwards, because the JSON text is created at once.
    """
    from polygraphy.comparator import RunResults
    from polygraphy.json import save_json

    inputs = [inputs_of_graph(forward, dialect, rotary) for forward in forwards]
    answers = RunResults()
    answers.add(
        [_polygraphy_arrays(outputs_of_graph(forward, dialect)) for forward in forwards],
        runner_name=rule.reference,
    )
    save_json([_polygraphy_arrays(arrays) for arrays in inputs], str(folder / "inputs.json"))
    save_json(answers, str(folder / "outputs.json"))
    (folder / "compare.py").write_text(inspect.getsource(compare), "utf-8")
    (folder / "rule.json").write_bytes(msgspec.json.format(msgspec.json.encode(rule), indent=2) + b"\n")
    (folder / "trt-shapes.txt").write_text(shape_options(inputs), "utf-8")


def shape_options(inputs: Sequence[Arrays]) -> str:
    """Return command-line options with one range of shapes for all of `inputs`, optimal for the largest."""
    shapes = {name: np.array([arrays[name].shape for arrays in inputs]) for name in inputs[0]}
    smallest = {name: found.min(axis=0) for name, found in shapes.items()}
    largest = {name: found.max(axis=0) for name, found in shapes.items()}
    lines = [
        " ".join([f"--trt-{which}-shapes", *(f"{name}:[{','.join(map(str, sizes))}]" for name, sizes in found.items())])
        for which, found in (("min", smallest), ("opt", largest), ("max", largest))
    ]
    return "\n".join(lines) + "\n"


def _polygraphy_arrays(arrays: Arrays) -> dict[str, Any]:
    return {name: _tensor_of_bits(array) if array.dtype == _BFLOAT16_BITS else array for name, array in arrays.items()}


def _tensor_of_bits(bits: Array) -> Any:
    """Return the bfloat16 numbers in `bits` as a torch tensor."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(bits).view(np.int16)).view(torch.bfloat16)
