"""Short runs of tools/serving/load.py, and its results. No test measures time."""

import asyncio
import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.cli.command import lopa_export
from tests.tools.run_tool import run_tool
from tools.serving.load import Load, address_from_url, run_over_http
from tools.serving.server import MODEL, run_server

from lopa.runtime.errors import BadInputError, CheckFailedError
from lopa.runtime.generation_config import GenerationConfig

pytestmark = pytest.mark.slow

COUNTS = ("--requests", 4, "--rounds", 1, "--tokens", 12, "--max-num-seqs", 2)


def test_all_sides_get_the_same_requests(tiny_bundle: Path, tmp_path: Path) -> None:
    with run_server(tiny_bundle, ()) as server:
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
    assert sum(line.startswith("| ") for line in lines) == 3 * 2 + 3 * 6  # header lines, and a row per side
    assert "onnxruntime" in lines[-1]
    assert lines[:-1] == done.stdout.splitlines()[: len(lines) - 1]
    assert report["run"]["command"].startswith("python -m tools.measure load ")


def test_different_answers_are_rejected(tiny_bundle: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(tiny_bundle, tmp_path / "other"))
    assert lopa_export("edit", other, "--default", "skip_threshold=0.05").returncode == 0
    with run_server(other, ()) as server:
        url = f"{server.url}/v1"
        done = run_tool("measure", "load", tiny_bundle, url, "--model", MODEL, "--clients", "1", *COUNTS)
    assert done.returncode == 1
    assert "the decoder's answer" in done.stderr


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "http://localhost:8000", "https://localhost/v1", "http:///v1"])
def test_urls_without_a_known_protocol_are_rejected(url: str) -> None:
    with pytest.raises(BadInputError, match="URL"):
        address_from_url(url, "tiny")


class Triton(BaseHTTPRequestHandler):
    """Server that replies like Triton's generate extension, in chunks."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        assert self.path == "/v2/models/tiny/generate"
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert (request["max_new_tokens"], request["branches"]) == (12, 1)
        text = json.dumps({"text_output": request["text_input"].upper()}).encode()
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for part in (text[:5], text[5:], b""):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def test_answers_of_triton_are_measured_and_compared() -> None:
    load = Load("whole", 2, ("a", "b", "c"), GenerationConfig(branches=1, max_new_tokens=12), 2)
    with ThreadingHTTPServer(("127.0.0.1", 0), Triton) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = address_from_url(f"http://127.0.0.1:{server.server_port}/v2", "tiny")
        run = asyncio.run(run_over_http(address, load, ["A", "B", "C"]))
        assert (len(run.whole), run.first_text) == (3, [])
        assert max(run.whole) <= run.wall
        with pytest.raises(CheckFailedError, match="prompt 1"):
            asyncio.run(run_over_http(address, load, ["A", "?", "C"]))
        server.shutdown()


def test_triton_is_recognized_by_its_url() -> None:
    assert address_from_url("http://localhost:8000/v2", "tiny").is_triton
    assert not address_from_url("http://localhost:8000/ray/v1/", "tiny").is_triton


def test_invalid_numbers_of_clients_are_rejected(tiny_bundle: Path, tmp_path: Path) -> None:
    done = run_tool("measure", "load", tiny_bundle, "--clients", "0", "-o", tmp_path / "out")
    assert done.returncode == 2
    assert "--clients" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
