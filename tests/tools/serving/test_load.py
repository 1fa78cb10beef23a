"""tools/serving/load.py as it is run, short, and what it makes of runs. No test looks at a time."""

import json
import shutil
from pathlib import Path

import pytest
from tests.cli.command import lopa_export
from tests.tools.run_tool import run_tool
from tools.serving.load import place_from_url
from tools.serving.server import MODEL, served

from lopa.runtime.errors import BadInputError

COUNTS = ("--requests", 4, "--rounds", 1, "--tokens", 12, "--slots", 2)


def test_the_same_requests_take_turns_on_every_side(tiny_bundle: Path, tmp_path: Path) -> None:
    with served(tiny_bundle, ()) as server:
        url = f"http://{server.address.host}:{server.address.port}/v1"
        arguments = (tiny_bundle, url, "--model", MODEL, "--clients", "1,3", *COUNTS, "-o", tmp_path / "out")
        done = run_tool("measure", "load", *arguments)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out" / "load.json").read_text())
    assert [(each["form"], each["clients"], each["side"]) for each in report["measured"]] == [
        (form, clients, side)
        for clients in (1, 3)
        for form in ("whole", "streamed", "with drafts")
        for side in ("engine", "server", url)
    ]
    assert 0 < report["tokens"] <= 48
    for each in report["measured"]:
        for run in each["runs"]:
            assert len(run["whole"]) == 4
            assert len(run["first_text"]) == (0 if each["form"] == "whole" else 4)
    tables = (tmp_path / "out" / "load.md").read_text()
    lines = tables.splitlines()
    assert sum(line.startswith("| ") for line in lines) == 3 * 2 + 3 * 6  # heads with rules, and sides
    assert "onnxruntime" in lines[-1]
    assert lines[:-1] == done.stdout.splitlines()[: len(lines) - 1]
    assert report["run"]["command"].startswith("python -m tools.measure load ")


def test_a_server_that_answers_otherwise_is_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(tiny_bundle, tmp_path / "other"))
    assert lopa_export("edit", other, "--default", "skip_threshold=0.05").returncode == 0
    with served(other, ()) as server:
        url = f"http://{server.address.host}:{server.address.port}/v1"
        done = run_tool("measure", "load", tiny_bundle, url, "--model", MODEL, "--clients", "1", *COUNTS)
    assert done.returncode == 1
    assert "as the bundle decodes it" in done.stderr


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "http://localhost:8000", "https://localhost/v1", "http:///v1"])
def test_urls_of_no_protocol_are_refused(url: str) -> None:
    with pytest.raises(BadInputError, match="URL"):
        place_from_url(url, "tiny")


def test_triton_is_known_by_its_protocol() -> None:
    assert place_from_url("http://localhost:8000/v2", "tiny").is_triton
    assert not place_from_url("http://localhost:8000/ray/v1/", "tiny").is_triton


def test_numbers_of_clients_that_are_none_are_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    done = run_tool("measure", "load", tiny_bundle, "--clients", "0", "-o", tmp_path / "out")
    assert done.returncode == 2
    assert "--clients" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
