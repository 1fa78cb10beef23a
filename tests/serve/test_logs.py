"""Log of real servers: formats, request IDs, and failures of the log that do not affect answers."""

import contextlib
import fcntl
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import httpx2 as httpx
import pytest
from tests.cli.command import lopa_export
from tests.serve.servers import INVALID, STOPPING, WAIT, Server, serving, until

from lopa.serve.logs import ACCESS, REQUEST_ID, log_to_descriptor

BODY = {"model": "tiny", "prompt": "2 + 2", "max_tokens": 4}
FULL = Path("/dev/full")
NAME = "client-request.1/~!"


@contextlib.contextmanager
def logging_to(bundle: Path, errors: int | IO[bytes]) -> Iterator[tuple[subprocess.Popen[bytes], httpx.Client]]:
    """Run a server that logs every request to `errors`. Yield its process and a client."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "lopa.cli.main", "-v", "serve", str(bundle), "--model", "tiny", "--threads", "1"]
    with subprocess.Popen([*command, "--port", str(port)], stdout=errors, stderr=errors) as process:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT, trust_env=False) as client:
                until(lambda: process.poll() is not None or is_ready(client))
                yield process, client
        finally:
            process.kill()


def is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/ready").status_code == 200
    except httpx.ConnectError:
        return False


def answers(client: httpx.Client, count: int) -> list[int]:
    """Send good and bad requests, each with log lines, and return their statuses."""
    return [client.post("/v1/completions", json=BODY if number % 2 else {}).status_code for number in range(count)]


def test_blocked_pipe_changes_no_answer_and_no_exit_code(chat_bundle: Path) -> None:
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    with os.fdopen(write, "wb") as errors, logging_to(chat_bundle, errors) as (process, client):
        assert answers(client, 40) == [400, 200] * 20
        process.terminate()
        assert process.wait(WAIT) == 0
    os.close(read)


def test_lost_lines_are_counted_later(tmp_path: Path) -> None:
    path, log = tmp_path / "log", logging.getLogger("lopa.serve.test")
    with FULL.open("wb") as full, log_to_descriptor(full.fileno(), "json", quiet=False, access=False):
        for number in range(5):
            log.warning("line %d", number)
        writer: Any = logging.getLogger().handlers[-1]
        until(lambda: writer.lost == 5)
        with path.open("wb") as file:
            os.dup2(file.fileno(), full.fileno())
        log.warning("more")
    lost, more = (json.loads(line) for line in path.read_text().splitlines())
    assert lost["message"] == "5 log lines could not be written"
    assert more["message"] == "more"


def test_every_json_line_is_an_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        logging.getLogger(), "handlers", []
    )  # pytest-xdist cannot send a surrogate that pytest captured
    path, log = tmp_path / "log", logging.getLogger("lopa.serve.test")
    with path.open("wb") as file, log_to_descriptor(file.fileno(), "json", quiet=False, access=True):
        token = REQUEST_ID.set("of-a-client")
        try:
            raise ValueError("two\nlines \ud800")
        except ValueError:
            log.exception("a request %s", "failed")
        REQUEST_ID.reset(token)
        malformed = logging.LogRecord("lopa.serve.test", logging.WARNING, "", 0, "a message %d", ("x",), None)
        logging.getLogger().handlers[-1].handle(malformed)
        log.info("not shown")
        logging.getLogger(ACCESS).info("shown", extra={"fields": {"status": 200}})
    failed, unfit, access = (json.loads(line) for line in path.read_text().split("\n")[:-1])
    assert (failed["level"], failed["logger"], failed["message"]) == ("ERROR", "lopa.serve.test", "a request failed")
    assert failed["request_id"] == "of-a-client"
    assert failed["exception"].startswith("Traceback (most recent call last):\n")
    assert "two\nlines" in failed["exception"]
    assert failed["time"].endswith("Z")
    assert (unfit["message"], unfit["request_id"]) == ("a record of lopa.serve.test could not be formatted", None)
    assert (access["status"], access["message"]) == (200, "shown")


def response_id(server: Server, *names: bytes) -> str:
    """Return the response's X-Request-ID for a request with one such header per item of `names`."""
    lines = b"".join(b"X-Request-ID: " + name + b"\r\n" for name in names)
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + lines + b"\r\n")
        received = b""
        while part := client.recv(65536):
            received += part
    (found,) = [line for line in received.split(b"\r\n") if line.startswith(b"x-request-id: ")]
    return found.partition(b": ")[2].decode()


def test_client_s_request_id_is_repeated(server: Server) -> None:
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "2 + 2"}], "max_tokens": 4, "stream": True}
    for method, path, body, more, status in (
        ("GET", "/", None, {}, 200),
        ("GET", "/health", None, {}, 200),
        ("POST", "/v1/completions", BODY, {}, 200),
        ("POST", "/v1/chat/completions", chat, {}, 200),
        ("POST", "/v1/completions", {**BODY, "n": 0}, {}, 400),
        ("POST", "/v1/completions", BODY, {"Origin": "http://elsewhere"}, 403),
        ("GET", "/nowhere", None, {}, 404),
        ("GET", "/v1/completions", None, {}, 405),
    ):
        answer = server.http.request(method, path, json=body, headers={"X-Request-ID": NAME, **more})
        assert (answer.status_code, answer.headers.get_list("x-request-id")) == (status, [NAME])
        other = server.http.request(method, path, json=body, headers=more)
        assert other.headers["x-request-id"] != NAME
    for name in (b"a", b"x" * 128, bytes(range(0x21, 0x7F))):
        assert response_id(server, name) == name.decode()
    for invalid in ((), (b"",), (b"x" * 129,), (b"two words",), (b"\xc3\xa9",), (b"a\tb",), (b"one", b"two")):
        assert response_id(server, *invalid).startswith("req_"), invalid


def test_json_access_log_has_ids_and_no_query(chat_bundle: Path) -> None:
    with serving(chat_bundle, "--access-log", "--log-format", "json") as server:
        assert json.loads(server.head[-1])["message"].startswith("tiny at http://")
        whole = server.http.post("/v1/completions", json=BODY)
        server.http.post("/v1/completions?key=secret%0aX", json=BODY, headers={"X-Request-ID": NAME})
        server.http.get('/v1/"%0a\u202e')
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(b"CONNECT a:1 HTTP/1.1\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 400 ")
        code, output = server.stop()
    assert code == 0
    assert "secret" not in output
    lines = [json.loads(line) for line in output.splitlines()]
    first, second, third = [line for line in lines if line["logger"] == ACCESS]
    assert (first["request_id"], first["status"], first["method"]) == (whole.headers["x-request-id"], 200, "POST")
    assert (first["path"], first["bytes"]) == ("/v1/completions", len(whole.content))
    assert first["client"].startswith("127.0.0.1:")
    assert first["seconds"] > 0
    assert (second["request_id"], second["path"]) == (NAME, "/v1/completions")
    assert (third["status"], third["path"]) == (404, "/v1/%22%0a%E2%80%AE")
    assert [line["level"] for line in lines if INVALID in line["message"]] == ["WARNING"]
    assert lines[-1]["message"] == STOPPING


def test_text_access_log_and_a_client_disconnect(chat_bundle: Path) -> None:
    with serving(chat_bundle, "-v") as server:
        server.http.post("/v1/completions", json=BODY, headers={"X-Request-ID": NAME})
        long: dict[str, Any] = {**BODY, "max_tokens": 1000, "lopa": {"strategy": "vanilla", "stop_at_eos": False}}
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/v1/completions", json=long, timeout=0.2, trust_env=False)
        server.until_idle()
        code, output = server.stop()
    assert code == 0
    of_client = [line for line in output.splitlines() if NAME in line]
    assert len(of_client) == 3, "one line for the request, one for its plan, one for its end"
    assert '"POST /v1/completions HTTP/1.1" 200, ' in of_client[-1]
    assert '"POST /v1/completions HTTP/1.1" 499, 0 bytes' in output
    with serving(chat_bundle, "-v", "--no-access-log") as server:
        server.http.get("/health")
        assert ACCESS not in server.stop()[1]


def test_settings_from_the_environment(chat_bundle: Path) -> None:
    variables = {
        "LOPA_SERVE__MAX_TOKENS": "7",
        "LOPA_SERVE__MODEL": "another",
        "LOPA_SERVE__ACCESS_LOG": "1",
        "LOPA_SERVE__CORS": "http://a.example http://b.example",
        "LOPA_SERVE__STALL": "",
        "LOPA_SERVE__MAX_TOKEN": "8",
        "LOPA_VERSION": "1",
        "LOPA_MAX_TOKENS": "3",  # another prefix
        "LOPA_SERVE_MAX_BRANCHES": "2",
        "LOPA_SERVE_SERVICE_HOST": "10.0.0.1",  # variables of a Kubernetes service of this name
        "LOPA_SERVE_PORT": "tcp://10.0.0.1:80",
    }
    with serving(chat_bundle, variables=variables) as server:
        warnings = sorted(line for line in server.head if "warning" in line)
        assert [line.removeprefix("warning: the environment variable ").split(";")[0] for line in warnings] == [
            "LOPA_MAX_TOKENS has no effect",
            "LOPA_SERVE_MAX_BRANCHES has no effect",
            "LOPA_SERVE__MAX_TOKEN matches no option",
        ]
        assert "did you mean LOPA_SERVE__MAX_BRANCHES?" in warnings[1]
        assert server.http.post("/v1/completions", json={**BODY, "max_tokens": 8}).status_code == 400
        assert server.http.get("/v1/models").json()["data"][0]["id"] == "tiny", "the command line wins"
        for origin in ("http://a.example", "http://b.example"):
            answer = server.http.get("/health", headers={"Origin": origin})
            assert answer.headers["access-control-allow-origin"] == origin
        assert server.stop()[1].count(ACCESS) == 4


def test_environment_is_checked_and_named_in_errors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOPA_SERVE__BUNDLE", str(tmp_path / "of the environment"))
    done = lopa_export("serve", "--port", 0)
    assert (done.returncode, "of the environment" in done.stderr) == (2, True)
    monkeypatch.setenv("LOPA_SERVE__PORT", "tcp://10.0.0.1:8000")
    done = lopa_export("serve")
    assert done.returncode == 2
    assert "invalid value for '--port' (env var: 'LOPA_SERVE__PORT'): 'tcp://10.0.0.1:8000'" in done.stderr
    monkeypatch.setenv("LOPA_SERVE__PORT", "0")
    monkeypatch.setenv("LOPA_SERVE__STALL", "nan")
    done = lopa_export("serve")
    assert done.returncode == 2
    assert "invalid stall nan" in done.stderr
    variables = "LOPA_SERVE__BUNDLE, LOPA_SERVE__PORT, LOPA_SERVE__STALL"
    assert f"(set by environment variables: {variables})" in done.stderr
    for name in variables.split(", "):
        monkeypatch.delenv(name)
    assert "environment" not in lopa_export("serve", tmp_path, "--stall", "nan").stderr


@pytest.mark.parametrize("option", ["api-keys", "require-signature"])
def test_empty_variable_of_a_protecting_option_is_an_error(
    option: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    variable = f"LOPA_SERVE__{option.upper().replace('-', '_')}"
    monkeypatch.setenv(variable, "")
    done = lopa_export("serve", tmp_path, "--port", 0)
    assert done.returncode == 2
    assert f"the environment variable {variable} is empty" in done.stderr
    assert "is empty" not in lopa_export("serve", tmp_path, "--port", 0, f"--{option}", "FILE").stderr


def test_failure_to_start_is_in_the_json_log(tmp_path: Path) -> None:
    done = lopa_export("serve", tmp_path / "nothing", "--port", 0, "--log-format", "json")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert (done.returncode, lines[-1]["level"]) == (2, "ERROR")
    assert lines[-1]["message"].startswith("error: ")
    assert "nothing" in lines[-1]["message"]
