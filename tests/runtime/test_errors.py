"""Errors survive the transfer between processes."""

import copy
import pickle

import pytest

from lopa.runtime.errors import BadInputError, EngineFailedError, FieldError, LopaError

ERRORS = [
    BadInputError("a", expected="b", remedy="c"),
    EngineFailedError("a", expected="b", remedy="c"),
    FieldError("prompt", "a", expected="b", remedy="c"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("moved", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))], ids=["copy", "pickle"])
def test_an_error_survives_copy_and_pickle(error: LopaError, moved: object) -> None:
    found = moved(error)  # type: ignore[operator]
    assert type(found) is type(error)
    assert (str(found), vars(found)) == (str(error), vars(error))
    assert (found.received, found.expected, found.remedy) == ("a", "b", "c")
