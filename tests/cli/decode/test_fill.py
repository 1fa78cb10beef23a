"""`lopa-export fill`: the whole text on standard output, and errors for texts and bundles without a use."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.command import lopa_export

from lopa.runtime import Decoder


def test_the_whole_text_is_printed(family_bundle: Callable[..., Path]) -> None:
    bundle, text = family_bundle("llada"), "Name: <hole:4>, age: <hole:2>.\n"
    with Decoder.open(bundle, threads=1) as decoder:
        expected = decoder.fill(text)
    done = lopa_export("fill", bundle, text, "--threads", 1, "--drafts")
    assert (done.returncode, done.stdout) == (0, expected.filled_text)
    assert "░" in done.stderr
    assert f"{expected.tokens} tokens in {expected.steps} steps" in done.stderr
    piped = lopa_export("fill", bundle, "--threads", 1, "--quiet", stdin=text)
    assert (piped.stdout, piped.stderr) == (expected.filled_text, "")


@pytest.mark.parametrize(
    ("text", "message"), [("no hole", "a text without a hole"), ("<hole:0>", "tokens of a hole 0")], ids=str
)
def test_a_text_without_a_use_is_refused(text: str, message: str) -> None:
    done = lopa_export("fill", "nowhere", text)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_bundle_with_an_adapter_is_refused(tiny_bundle: Path) -> None:
    done = lopa_export("fill", tiny_bundle, "a <hole:2> b", "--threads", 1)
    assert (done.returncode, done.stdout) == (2, "")
    assert "D2F adapter" in done.stderr
