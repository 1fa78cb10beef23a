"""A missing llguidance is reported with the command that installs it."""

import sys
from pathlib import Path

import pytest

from lopa.runtime import Decoder
from lopa.runtime.errors import MissingBackendError
from lopa.runtime.grammar.llguidance_library import library


def test_missing_library_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingBackendError, match=r"pip.* install"):
        library()


def test_prepare_or_name_the_missing_library(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Decoder.open(tiny_bundle, threads=1) as decoder:
        with monkeypatch.context() as without:
            without.setitem(sys.modules, "llguidance", None)
            with pytest.raises(MissingBackendError, match="llguidance is not installed"):
                decoder.prepare_grammars()
        assert "vocabulary" not in vars(decoder._grammars)
        decoder.prepare_grammars()
        assert "texts" in vars(vars(decoder._grammars)["vocabulary"])
