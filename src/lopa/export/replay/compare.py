"""Compare a run of Polygraphy with saved results by the rules of lopa-export verify. Print outputs beyond tolerance.

    polygraphy run GRAPH --onnxrt --load-inputs inputs.json --load-outputs outputs.json --compare-func-script compare.py

Folders of saved forwards have a copy of this file, and its tolerances in rule.json. It needs numpy but not lopa, so the
folder can be used where lopa is not installed.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

_IDS, _LOGPROBS, _ENTROPY = "topk_ids", "topk_logprobs", "entropy"
_STATISTICS = (_IDS, _LOGPROBS, _ENTROPY)
"""Outputs that are compared in nats. Ids are compared by their log-probabilities. Errors are relative to the largest
value, at least 1.
"""
_MIN = float(np.finfo(np.float32).tiny)


class RunnerOutputs(Protocol):
    """Outputs of a runner for one forward: polygraphy.comparator.IterationResult."""

    runner_name: str

    def keys(self) -> Iterable[str]: ...  # noqa: D102

    def __getitem__(self, name: str) -> Any: ...


def compare_outputs(first: RunnerOutputs, second: RunnerOutputs) -> dict[str, bool]:
    """Return for each saved output whether the run reproduces it. Polygraphy calls this for every forward."""
    rule = json.loads(Path(__file__).with_name("rule.json").read_text(encoding="utf-8"))
    expected, found = (first, second) if first.runner_name == rule["reference"] else (second, first)
    return matching_outputs(expected, found, rule)


def matching_outputs(expected: RunnerOutputs, found: RunnerOutputs, rule: dict[str, Any]) -> dict[str, bool]:
    """Return for each output whether it is correct. `rule` has the fields of
    lopa.export.replay.forwards_folder.ComparisonRule."""
    existing = set(found.keys())
    verdicts = {}
    for name in expected.keys():  # noqa: SIM118 (a Polygraphy class without __iter__)
        error = _relative_error(name, expected, found, by_rms=rule["by_rms"]) if name in existing else np.inf
        verdicts[name] = bool(error <= rule["tolerance"])
        if not verdicts[name]:
            print(f"{name}: relative error {error:.1e}, tolerance {rule['tolerance']:.1e}")
    if rule["margin"] is not None and _IDS in existing:
        others = _other_tokens(expected, found, rule["margin"])
        if others:
            verdicts[_IDS] = False
            print(f"{_IDS}: wrong first token in {others} rows whose expected token leads by > {rule['margin']} nats")
    return verdicts


def _relative_error(name: str, expected: RunnerOutputs, found: RunnerOutputs, *, by_rms: bool) -> float:
    """Return the relative error.

    It is infinite for another shape, and NaN (never within tolerance) if a found value is NaN.
    """
    lower = 1.0 if name in _STATISTICS else _MIN
    if name == _IDS:
        right, given = _logprobs_of_ids(expected, found)
    else:
        right, given = _numbers(expected[name]), _numbers(found[name])
    if given.shape != right.shape:
        return float("inf")
    errors = given - right
    if by_rms:
        size = max(float(np.square(right).sum()), right.size * lower**2)
        return float(np.sqrt(np.square(errors).sum() / size))
    return float(np.abs(errors).max() / max(float(np.abs(right).max()), lower))


def _logprobs_of_ids(expected: RunnerOutputs, found: RunnerOutputs) -> tuple[Float64, Float64]:
    """Return the expected log-probability at each rank, [.., K], and of the id found there.

    Ids may therefore swap places if they are equally probable. An id that is not among the K expected ones counts as
    the last of them, since it is at most as probable. Returns NaN for repeated ids or another shape.
    """
    right, given = np.asarray(expected[_IDS]), np.asarray(found[_IDS])
    logprobs = _numbers(expected[_LOGPROBS])
    if given.shape != right.shape or (np.diff(np.sort(given, axis=-1), axis=-1) == 0).any():
        return logprobs, np.full(logprobs.shape, np.nan)
    same = given[..., :, None] == right[..., None, :]  # [.., rank of found, rank of expected]
    known = np.take_along_axis(logprobs, same.argmax(axis=-1), axis=-1)
    return logprobs, np.where(same.any(axis=-1), known, logprobs[..., -1:])


def _other_tokens(expected: RunnerOutputs, found: RunnerOutputs, margin: float) -> int:
    """Count rows with another first id although the expected one leads the next by more than `margin` nats."""
    right, given = np.asarray(expected[_IDS]), np.asarray(found[_IDS])
    if given.shape != right.shape:
        return right[..., 0].size
    logprobs = _numbers(expected[_LOGPROBS])
    leads = logprobs[..., 0] - logprobs[..., 1] > margin
    return int((leads & (given[..., 0] != right[..., 0])).sum())


def _numbers(array: Any) -> Float64:
    """Convert a numpy array or a torch tensor, which Polygraphy uses for bfloat16."""
    values = array if isinstance(array, np.ndarray) else array.detach().cpu().double().numpy()
    return np.asarray(values, np.float64)
