"""tools/serving/load.py as it is run, short, and what it makes of runs. No test looks at a time."""

import asyncio
import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.cli.command import lopa_export
from tests.tools.run_tool import run_tool
from tools.serving.load import Load, place_from_url, run_over_http
from tools.serving.server import MODEL, served

from lopa.runtime.errors import BadInputError, CheckFailedError
from lopa.runtime.generation_config import GenerationConfig

COUNTS = ("--requests", 4, "--rounds", 1, "--tokens", 12, "--max-num-seqs", 2)


def test_the_same_requests_take_turns_on_every_side(tiny_bundle: Path, tmp_path: Path) -> None:
    with served(tiny_bundle, ()) as server:
        url = f"{server.url}/v1"
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
        url = f"{server.url}/v1"
        done = run_tool("measure", "load", tiny_bundle, url, "--model", MODEL, "--clients", "1", *COUNTS)
    assert done.returncode == 1
    assert "as the bundle decodes it" in done.stderr


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "http://localhost:8000", "https://localhost/v1", "http:///v1"])
def test_urls_of_no_protocol_are_refused(url: str) -> None:
    with pytest.raises(BadInputError, match="URL"):
        place_from_url(url, "tiny")


class Triton(BaseHTTPRequestHandler):
    """Answers as Triton's generate extension does, in chunks."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        assert self.path == "/v2/models/tiny/generate"
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert (asked["max_new_tokens"], asked["branches"]) == (12, 1)
        text = json.dumps({"text_output": asked["text_input"].upper()}).encode()
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for part in (text[:5], text[5:], b""):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_whole_answers_of_triton_are_timed_and_compared() -> None:
    load = Load("whole", 2, ("a", "b", "c"), GenerationConfig(branches=1, max_new_tokens=12), 2)
    with ThreadingHTTPServer(("127.0.0.1", 0), Triton) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = place_from_url(f"http://127.0.0.1:{server.server_port}/v2", "tiny")
        run = asyncio.run(run_over_http(place, load, ["A", "B", "C"]))
        assert (len(run.whole), run.first_text) == (3, [])
        assert max(run.whole) <= run.wall
        with pytest.raises(CheckFailedError, match="prompt 1"):
            asyncio.run(run_over_http(place, load, ["A", "?", "C"]))
        server.shutdown()


def test_triton_is_known_by_its_protocol() -> None:
    assert place_from_url("http://localhost:8000/v2", "tiny").is_triton
    assert not place_from_url("http://localhost:8000/ray/v1/", "tiny").is_triton


def test_numbers_of_clients_that_are_none_are_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    done = run_tool("measure", "load", tiny_bundle, "--clients", "0", "-o", tmp_path / "out")
    assert done.returncode == 2
    assert "--clients" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
