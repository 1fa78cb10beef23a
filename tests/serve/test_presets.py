"""Presets over HTTP: the default one, named ones, unknown ones, and limits of the operator."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.cli.command import lopa_export
from tests.serve.servers import Server, serving
from tests.serve.test_answers import QUESTIONS

from lopa.runtime import Decoder
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.edit import edit_bundle, write_manifest
from lopa.runtime.bundle.manifest import Preset

OPTIONS: dict[str, dict[str, Any]] = {
    "balanced": {"strategy": "threshold", "skip_threshold": 0.95, "unmask_first_masked": True},
    "fast": {"strategy": "threshold", "skip_threshold": 0.6, "unmask_first_masked": True},
    "wide": {"strategy": "lopa", "branches": 3},
}


@pytest.fixture(scope="module")
def tuned(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(shutil.copytree(tiny_bundle, tmp_path_factory.mktemp("tuned") / "tuned"))
    presets = {name: Preset(options=each, devices=["cpu"], measured="80 %") for name, each in OPTIONS.items()}
    write_manifest(edit_bundle(Bundle.open(folder), defaults={"preset": "balanced"}, presets=presets))
    return folder


@pytest.fixture(scope="module")
def server(tuned: Path) -> Iterator[Server]:
    with serving(tuned) as started:
        yield started


@pytest.mark.parametrize(
    ("requested", "options"),
    [
        ({}, OPTIONS["balanced"]),
        ({"preset": "fast"}, OPTIONS["fast"]),
        ({"preset": "wide", "branches": 2}, {**OPTIONS["wide"], "branches": 2}),
        ({"preset": "none"}, {"preset": "none"}),
        ({"strategy": "eb"}, {"strategy": "eb"}),
    ],
)
def test_a_request_names_a_preset(
    server: Server, tuned: Path, requested: dict[str, Any], options: dict[str, Any]
) -> None:
    answer: Any = server.client.completions.create(
        model="tiny", prompt=QUESTIONS[0], max_tokens=40, extra_body={"lopa": requested}
    )
    with Decoder.open(tuned, threads=1) as decoder:
        expected = decoder.generate(QUESTIONS[0], max_new_tokens=40, **options)
    (choice,) = answer.choices
    assert (choice.text, choice.model_extra["lopa"]["steps"]) == (expected.text, expected.steps)


def test_the_log_names_the_default_preset(server: Server) -> None:
    assert any("requests without options use preset balanced" in line for line in server.head)


def test_the_operator_chooses_another_preset_for_all(tuned: Path) -> None:
    with serving(tuned, "--preset", "fast") as other:
        assert any("requests without options use preset fast" in line for line in other.head)


def test_an_unknown_preset_is_a_bad_request(server: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="unknown preset 'none-such'") as caught:
        server.client.completions.create(model="tiny", prompt="x", extra_body={"lopa": {"preset": "none-such"}})
    assert caught.value.param in ("lopa", "lopa.preset")


def test_a_preset_beyond_the_operator_s_limits_stops_the_server_at_start(tuned: Path) -> None:
    done = lopa_export("serve", tuned, "--port", 0, "--max-branches", 2)
    assert done.returncode == 2
    assert "preset wide with branches 3 exceeds --max-branches 2" in done.stderr
