"""Answered forwards as a folder that Polygraphy reads: inputs.json, outputs.json, and how they are to be compared.

Polygraphy is imported when a folder is checked or written. Does not know what forwards are worth saving.
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
from lopa.runtime.contract.stored_floats import stored_dtype
from lopa.runtime.errors import BadInputError, MissingBackendError
from lopa.runtime.files.untrusted_input import refused_as_bad_input
from lopa.runtime.install_hint import pip_install

_BFLOAT16_BITS = stored_dtype("bfloat16")


class Rule(msgspec.Struct, frozen=True):
    """When a forward is as it should be (lopa.export.replay.compare)."""

    reference: str
    """Who answered."""
    tolerance: float
    """Relative, of every output of one forward."""
    by_rms: bool
    """Whether that is for the root mean square of the errors, not for the largest."""
    margin: float | None
    """Nats by which a token must lead so that no other may be first; None: only how probable it is counts."""


def check_folder(folder: Path, dtype: str) -> None:
    """Raise BadInputError when `folder` exists, MissingBackendError when forwards of `dtype` cannot be written here."""
    with refused_as_bad_input(str(folder), expected="a path that can be made", remedy="choose another"):
        exists = folder.resolve().exists()
    if exists:
        raise BadInputError(
            f"{folder} exists",
            expected="a folder that does not: forwards are saved into a new one",
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
            expected="torch for a bundle in bfloat16: Polygraphy keeps such numbers as its tensors",
            remedy=pip_install("export"),
        )


def write_forwards(folder: Path, forwards: Sequence[AnsweredForward], dialect: Dialect, rule: Rule) -> None:
    """Write `forwards`, at least one, for the graph of `dialect` into `folder`, which exists and has none of its files.

    All of them are in memory several times over meanwhile: the text is made as one piece.
    """
    from polygraphy.comparator import RunResults
    from polygraphy.json import save_json

    inputs = [inputs_of_graph(forward, dialect) for forward in forwards]
    answers = RunResults()
    answers.add(
        [_as_polygraphy_has_it(outputs_of_graph(forward, dialect)) for forward in forwards],
        runner_name=rule.reference,
    )
    save_json([_as_polygraphy_has_it(arrays) for arrays in inputs], str(folder / "inputs.json"))
    save_json(answers, str(folder / "outputs.json"))
    (folder / "compare.py").write_text(inspect.getsource(compare), "utf-8")
    (folder / "rule.json").write_bytes(msgspec.json.format(msgspec.json.encode(rule), indent=2) + b"\n")
    (folder / "trt-shapes.txt").write_text(shape_options(inputs), "utf-8")


def shape_options(inputs: Sequence[Arrays]) -> str:
    """Options that give TensorRT one range of shapes for all of `inputs`, best for the largest: words and spaces."""
    shapes = {name: np.array([arrays[name].shape for arrays in inputs]) for name in inputs[0]}
    lower = {name: found.min(axis=0) for name, found in shapes.items()}
    upper = {name: found.max(axis=0) for name, found in shapes.items()}
    lines = [
        " ".join([f"--trt-{which}-shapes", *(f"{name}:[{','.join(map(str, sizes))}]" for name, sizes in found.items())])
        for which, found in (("min", lower), ("opt", upper), ("max", upper))
    ]
    return "\n".join(lines) + "\n"


def _as_polygraphy_has_it(arrays: Arrays) -> dict[str, Any]:
    return {name: _tensor_of_bits(array) if array.dtype == _BFLOAT16_BITS else array for name, array in arrays.items()}


def _tensor_of_bits(bits: Array) -> Any:
    """The bfloat16 numbers of `bits`, as a tensor of torch."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(bits).view(np.int16)).view(torch.bfloat16)
