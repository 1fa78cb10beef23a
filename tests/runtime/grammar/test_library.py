"""Without llguidance a grammar says how to install it."""

import sys

import pytest

from lopa.runtime.errors import MissingBackendError
from lopa.runtime.grammar.library import library


def test_where_it_is_missing_the_error_has_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingBackendError, match=r"pip.* install"):
        library()
