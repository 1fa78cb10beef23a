"""Holds a run of Polygraphy against saved answers as lopa-export verify would; prints what is beyond the rule.

    polygraphy run GRAPH --onnxrt --load-inputs inputs.json --load-outputs outputs.json --compare-func-script compare.py

A copy of this file lies beside saved forwards, and the rule for them in rule.json. Needs numpy and nothing of lopa, so
that the folder can be used where lopa is not installed. Knows no bundle.
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
"""In nats (ids by how probable they are): an error counts relative to 1 at least."""
_MIN = float(np.finfo(np.float32).tiny)


class Answers(Protocol):
    """What a runner gave for one forward: polygraphy.comparator.IterationResult."""

    runner_name: str

    def keys(self) -> Iterable[str]: ...  # noqa: D102

    def __getitem__(self, name: str) -> Any: ...


def compare_outputs(first: Answers, second: Answers) -> dict[str, bool]:
    """Polygraphy calls this for every forward: whether each output of the saved answers was found again."""
    rule = json.loads(Path(__file__).with_name("rule.json").read_text(encoding="utf-8"))
    expected, found = (first, second) if first.runner_name == rule["reference"] else (second, first)
    return outputs_found(expected, found, rule)


def outputs_found(expected: Answers, found: Answers, rule: dict[str, Any]) -> dict[str, bool]:
    """By output. `rule` has `tolerance`, `by_rms` (it is for the root mean square, not the largest) and `margin`."""
    there = set(found.keys())
    verdicts = {}
    for name in expected.keys():  # noqa: SIM118 (of a dictionary of Polygraphy's)
        error = _relative_error(name, expected, found, by_rms=rule["by_rms"]) if name in there else np.inf
        verdicts[name] = bool(error <= rule["tolerance"])
        if not verdicts[name]:
            print(f"{name}: {error:.1e}, where {rule['tolerance']:.1e} is allowed")
    if rule["margin"] is not None and _IDS in there:
        others = _other_tokens(expected, found, rule["margin"])
        if others:
            verdicts[_IDS] = False
            print(f"{_IDS}: {others} rows with another first token, which lead by more than {rule['margin']} nats")
    return verdicts


def _relative_error(name: str, expected: Answers, found: Answers, *, by_rms: bool) -> float:
    """Infinite for another shape; not a number, which is within no tolerance, where something found is none."""
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


def _logprobs_of_ids(expected: Answers, found: Answers) -> tuple[Float64, Float64]:
    """The expected log-probability at each rank, [.., K], and that of the id which was found there.

    So ids may change places where they are as probable. One that is not among the K expected ones counts as the last of
    them: it is at most as probable. Not a number where ids are equal or have another shape.
    """
    right, given = np.asarray(expected[_IDS]), np.asarray(found[_IDS])
    logprobs = _numbers(expected[_LOGPROBS])
    if given.shape != right.shape or (np.diff(np.sort(given, axis=-1), axis=-1) == 0).any():
        return logprobs, np.full(logprobs.shape, np.nan)
    same = given[..., :, None] == right[..., None, :]  # [.., rank of given, rank of right]
    known = np.take_along_axis(logprobs, same.argmax(axis=-1), axis=-1)
    return logprobs, np.where(same.any(axis=-1), known, logprobs[..., -1:])


def _other_tokens(expected: Answers, found: Answers, margin: float) -> int:
    """Rows whose first id is another, although the expected one leads the next by more than `margin` nats."""
    right, given = np.asarray(expected[_IDS]), np.asarray(found[_IDS])
    if given.shape != right.shape:
        return right[..., 0].size
    logprobs = _numbers(expected[_LOGPROBS])
    leads = logprobs[..., 0] - logprobs[..., 1] > margin
    return int((leads & (given[..., 0] != right[..., 0])).sum())


def _numbers(array: Any) -> Float64:
    """Of a numpy array, or of a torch tensor: as which Polygraphy keeps bfloat16."""
    values = array if isinstance(array, np.ndarray) else array.detach().cpu().double().numpy()
    return np.asarray(values, np.float64)
