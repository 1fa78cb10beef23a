"""Without llguidance a grammar says how to install it."""

import sys
from pathlib import Path

import pytest

from lopa.runtime import Decoder
from lopa.runtime.errors import MissingBackendError
from lopa.runtime.grammar.library import library


def test_where_it_is_missing_the_error_has_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingBackendError, match=r"pip.* install"):
        library()


def test_a_vocabulary_is_prepared_or_the_missing_library_is_named(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Decoder.open(tiny_bundle, threads=1) as decoder:
        with monkeypatch.context() as without:
            without.setitem(sys.modules, "llguidance", None)
            with pytest.raises(MissingBackendError, match="llguidance is not installed"):
                decoder.prepare_grammars()
        assert "_vocabulary" not in vars(decoder)
        decoder.prepare_grammars()
        assert "texts" in vars(vars(decoder)["_vocabulary"])
