"""Structured output over HTTP: costly grammars time out without delaying others, and a missing library is reported."""

import json
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.grammar.costly import COSTLY, USUAL
from tests.runtime.grammar.test_helper import children
from tests.serve.servers import Server, serving
from tests.serve.test_answers import QUESTIONS

from lopa.runtime.grammar.helper import is_helper_supported

pytestmark = pytest.mark.skipif(not is_helper_supported(), reason="this system has no fork, or no limits for a process")
PLAIN: dict[str, Any] = {"model": "tiny", "prompt": QUESTIONS[0], "max_tokens": 8}


def with_grammar(name: str, **lopa_fields: object) -> dict[str, Any]:
    return {**PLAIN, "lopa": {**COSTLY[name], **lopa_fields}}


def helper_of(server: Server) -> int:
    (found,) = children(server.process.pid)
    return found


def test_costly_grammars_do_not_delay_other_requests(unbounded: Server) -> None:
    """Prepare two costly grammars, as many as there are threads for prompts; cheaper requests finish before them."""
    answers: dict[str, Any] = {}

    def ask(name: str) -> None:
        answers[name] = unbounded.http.post("/v1/completions", json=with_grammar(name))

    threads = [threading.Thread(target=ask, args=(name,)) for name in ("multiples", "patterns")]
    for thread in threads:
        thread.start()
    unbounded.until(lambda: len(children(helper_of(unbounded))) == 2)
    assert unbounded.http.post("/v1/completions", json=PLAIN).status_code == 200
    structured = unbounded.http.post("/v1/completions", json={**PLAIN, "max_tokens": 64, "lopa": USUAL["object"]})
    assert set(json.loads(structured.json()["choices"][0]["text"])) == {"name", "age"}
    assert unbounded.http.get("/health").status_code == 200
    assert answers == {}
    for thread in threads:
        thread.join()
    for name in ("multiples", "patterns"):
        error = answers[name].json()["error"]
        assert (answers[name].status_code, error["param"]) == (400, "lopa.json_schema")
        assert "too complex" in error["message"]
    assert unbounded.http.post("/v1/completions", json=PLAIN).status_code == 200


def test_client_disconnect_stops_the_preparation(unbounded: Server) -> None:
    body = (
        json.dumps(with_grammar("patterns")).replace(".*a.*", ".*A.*").encode()
    )  # results of equal grammars are cached
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    helper = helper_of(unbounded)
    unbounded.until(lambda: not children(helper))
    with socket.create_connection(("127.0.0.1", unbounded.port)) as client:
        client.sendall(head + body)
        unbounded.until(lambda: bool(children(helper)))
        (child,) = children(helper)
        running = float(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[11])
    unbounded.until(lambda: not children(helper))
    assert running < 100  # clock ticks: stopped long before the limit of 4 s
    unbounded.until_idle()


def test_deadline_stops_the_preparation(unbounded: Server) -> None:
    body = with_grammar("patterns", deadline=0.2)
    body["lopa"]["json_schema"] = body["lopa"]["json_schema"].replace(".*a.*", ".*B.*")
    answer = unbounded.http.post("/v1/completions", json=body)
    (choice,) = answer.json()["choices"]
    assert (answer.status_code, choice["text"], choice["finish_reason"]) == (200, "", "length")
    assert choice["lopa"]["stop_reason"] == "time_limit"
    unbounded.until(lambda: not children(helper_of(unbounded)))


def test_crash_of_the_helper_fails_no_request(unbounded: Server) -> None:
    first = helper_of(unbounded)
    os.kill(first, 9)
    body = {**PLAIN, "max_tokens": 64, "lopa": {"regex": "[a-f]{3}"}}
    assert len(unbounded.http.post("/v1/completions", json=body).json()["choices"][0]["text"]) == 3
    assert helper_of(unbounded) != first
    # Read the log line about the crash, which the fixture does not expect.
    assert unbounded.process.stderr is not None
    assert "helper process" in unbounded.process.stderr.readline()


def test_missing_library_is_reported(chat_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "without.py").write_text(
        "import runpy, sys\nsys.modules['llguidance'] = None\nrunpy.run_module('lopa.cli.main', run_name='__main__')\n"
    )
    with serving(chat_bundle, program=(str(tmp_path / "without.py"),)) as server:
        warning = next(line for line in server.head if "structured output" in line)
        assert "llguidance is not installed" in warning
        answer = server.http.post("/v1/completions", json={**PLAIN, "lopa": USUAL["object"]})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (501, "not_supported")
        for secret in ("pip", sys.prefix, str(tmp_path), "llguidance"):
            assert secret not in answer.text
        assert server.http.post("/v1/completions", json=PLAIN).status_code == 200
        assert server.stop()[0] == 0
