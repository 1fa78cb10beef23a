"""Profiles over HTTP: the default one, named ones, unknown ones, and limits of the operator."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.serve.servers import WAIT, Server, serving
from tests.serve.test_answers import QUESTIONS

from lopa.runtime import Decoder
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.edit import edit_bundle, write_manifest
from lopa.runtime.bundle.manifest import Profile

OPTIONS: dict[str, dict[str, Any]] = {
    "balanced": {"strategy": "threshold", "skip_threshold": 0.95, "unmask_first_masked": True},
    "fast": {"strategy": "threshold", "skip_threshold": 0.6, "unmask_first_masked": True},
    "wide": {"strategy": "lopa", "branches": 3},
}


@pytest.fixture(scope="module")
def tuned(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(shutil.copytree(tiny_bundle, tmp_path_factory.mktemp("tuned") / "tuned"))
    profiles = {name: Profile(options=each, devices=["cpu"], measured="80 %") for name, each in OPTIONS.items()}
    write_manifest(edit_bundle(Bundle.open(folder), defaults={"profile": "balanced"}, profiles=profiles))
    return folder


@pytest.fixture(scope="module")
def server(tuned: Path) -> Iterator[Server]:
    with serving(tuned) as started:
        yield started


@pytest.mark.parametrize(
    ("requested", "options"),
    [
        ({}, OPTIONS["balanced"]),
        ({"profile": "fast"}, OPTIONS["fast"]),
        ({"profile": "wide", "branches": 2}, {**OPTIONS["wide"], "branches": 2}),
        ({"profile": "none"}, {"profile": "none"}),
        ({"strategy": "eb"}, {"strategy": "eb"}),
    ],
)
def test_a_request_names_a_profile(
    server: Server, tuned: Path, requested: dict[str, Any], options: dict[str, Any]
) -> None:
    answer: Any = server.client.completions.create(
        model="tiny", prompt=QUESTIONS[0], max_tokens=40, extra_body={"lopa": requested}
    )
    with Decoder.open(tuned, threads=1) as decoder:
        expected = decoder.generate(QUESTIONS[0], max_new_tokens=40, **options)
    (choice,) = answer.choices
    assert (choice.text, choice.model_extra["lopa"]["steps"]) == (expected.text, expected.steps)


def test_the_log_names_the_default_profile(server: Server) -> None:
    assert any("requests without options use profile balanced" in line for line in server.head)


def test_the_operator_chooses_another_profile_for_all(tuned: Path) -> None:
    with serving(tuned, "--profile", "fast") as other, Decoder.open(tuned, threads=1) as decoder:
        answer: Any = other.client.completions.create(model="tiny", prompt=QUESTIONS[0], max_tokens=40)
        expected = decoder.generate(QUESTIONS[0], max_new_tokens=40, **OPTIONS["fast"])
    assert answer.choices[0].text == expected.text
    assert any("requests without options use profile fast" in line for line in other.head)


def test_an_unknown_profile_is_a_bad_request(server: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="unknown profile 'none-such'") as caught:
        server.client.completions.create(model="tiny", prompt="x", extra_body={"lopa": {"profile": "none-such"}})
    assert caught.value.param in ("lopa", "lopa.profile")


def test_a_profile_beyond_the_operator_s_limits_stops_the_server_at_start(tuned: Path) -> None:
    command = [sys.executable, "-m", "lopa.cli.main", "serve", str(tuned), "--port", "0", "--max-branches", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT)
    assert done.returncode == 2
    assert "profile wide with branches 3 exceeds --max-branches 2" in done.stderr
