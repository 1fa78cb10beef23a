"""A server while its bundle opens: real processes that wait for the test before they open it."""

import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import lopa_export
from tests.serve.servers import OPENING, STOPPING, Server, serving
from tests.slow_opening import EXITING, SlowOpening, slow_opening

from lopa.tiny import CHECKPOINT

WAITS_FOR = "not ready: opening tiny on cpu"
BODY = {"model": "tiny", "prompt": "2 + 2", "max_tokens": 4}
API = (
    ("POST", "/v1/completions", BODY),
    ("POST", "/v1/chat/completions", {**BODY, "model": "another"}),
    ("POST", "/v1/completions", {}),
    ("GET", "/v1/models", None),
    ("GET", "/v1/models/tiny", None),
)
"""Method, path and body of requests, of which some are invalid."""


@pytest.fixture
def slow(tmp_path: Path) -> SlowOpening:
    return slow_opening(tmp_path)


@pytest.fixture(autouse=True)
def _hangups_as_usual() -> Iterator[None]:
    """Restore the default hangup handling, since nohup makes children ignore SIGHUP."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def check_not_ready(answer: Any) -> None:
    assert answer.status_code == 503
    assert (answer.json()["error"]["code"], answer.json()["error"]["message"]) == ("not_ready", WAITS_FOR)
    assert int(answer.headers["retry-after"]) > 0


def test_answers_before_and_after_the_bundle_is_open(slow: SlowOpening, chat_bundle: Path) -> None:
    with serving(chat_bundle, program=slow.program, line=OPENING) as server:
        assert str(chat_bundle) in server.head[-1]
        health = server.http.get("/health")
        assert (health.status_code, health.json()) == (200, {"status": "ok"})
        check_not_ready(server.http.get("/ready"))
        for method, path, body in API:
            check_not_ready(server.http.request(method, path, json=body))
        assert [server.http.get(path).status_code for path in ("/", "/nowhere", "/v1/completions")] == [200, 404, 405]
        early = server.http.get("/metrics").text
        assert f'lopa_rejected_total{{model="tiny",reason="not_ready"}} {len(API)}.0' in early
        slow.permit()
        server.until(lambda: server.http.get("/ready").status_code == 200)
        assert server.http.get("/ready").json() == {"status": "ready"}
        assert server.http.get("/health").status_code == 200
        assert server.http.post("/v1/completions", json=BODY).status_code == 200
        late = server.http.get("/metrics").text
        assert ('lopa_ready{model="tiny"} 0.0' in early, 'lopa_ready{model="tiny"} 1.0' in late) == (True, True)
        bundle = 'bundle="",model="tiny",schema="",'
        late = re.sub(r'bundle="\w{12}",model="tiny",schema="3",', bundle, late)
        series = [re.findall(r"^(\w+\{.*\}) ", text, re.MULTILINE) for text in (early, late)]
        assert series[0] == series[1], "every series exists from the start"
        code, output = server.stop()
    assert (code, output) == (0, f"tiny at {server.url}/v1\n{STOPPING}\n{EXITING}")


def test_keys_are_checked_while_the_bundle_opens(slow: SlowOpening, chat_bundle: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("a-key\n")
    with serving(chat_bundle, "--api-keys", keys, program=slow.program, line=OPENING) as server:
        for method, path, body in API:
            assert server.http.request(method, path, json=body).status_code == 401
            check_not_ready(server.http.request(method, path, json=body, headers={"Authorization": "Bearer a-key"}))
        assert server.http.get("/health").status_code == 200
        assert server.http.get("/health", headers={"Host": "elsewhere.example"}).status_code == 403


def check_closed(server: Server) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port))


def test_an_error_of_the_opening_ends_the_server(tmp_path: Path, tiny_bundle: Path) -> None:
    slow = slow_opening(tmp_path, "MissingBackendError('no such thing', expected='a thing', remedy='buy one')")
    with serving(tiny_bundle, program=slow.program, line=OPENING) as server:
        check_not_ready(server.http.get("/ready"))  # its connection stays open
        slow.permit()
        message = "error: no such thing\n  expected: a thing\n  what to do: buy one\n"
        assert server.ended() == (3, message + EXITING)
        check_closed(server)


@pytest.mark.parametrize(
    ("number", "code", "message"),
    [(signal.SIGINT, 130, "interrupted\n"), (signal.SIGTERM, 143, "")],
)
def test_a_signal_while_the_bundle_opens_ends_the_server_at_once(
    slow: SlowOpening, tiny_bundle: Path, number: int, code: int, message: str
) -> None:
    """Check also that the interpreter's cleanup is left out, as in tests/cli/terminal/test_opening.py."""
    with serving(tiny_bundle, program=slow.program, line=OPENING) as server:
        check_not_ready(server.http.get("/ready"))
        assert server.stop(number) == (code, f"stopping before the bundle is open\n{message}")
        check_closed(server)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--device", "cuda:0"), 3, "CUDA"),
        (("--max-num-seqs", 0), 2, "max_num_seqs 0"),
    ],
)
def test_an_unusable_device_or_limit_ends_the_server(
    tiny_bundle: Path, options: tuple[object, ...], code: int, message: str
) -> None:
    done = lopa_export("serve", tiny_bundle, "--port", 0, "--threads", 1, *options)
    assert (done.returncode, message in done.stderr, "/v1" in done.stderr) == (code, True, False), done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--default", "branches=3", "--max-branches", 2), "default branches 3 exceeds --max-branches 2"),
        (("--default", "gama=0.2"), "did you mean gamma=0.2?"),
        (("--default", "gamma=0.2"), "gamma 0.2 with strategy 'lopa'"),
        (("--chat-template", CHECKPOINT / "config.json"), "config.json is a JSON object"),
    ],
)
def test_options_are_checked_against_the_manifest_before_the_server_answers(
    tiny_bundle: Path, options: tuple[object, ...], message: str
) -> None:
    done = lopa_export("serve", tiny_bundle, "--port", 0, *options)
    assert (done.returncode, message in done.stderr, "http://" in done.stderr) == (2, True, False), done.stderr
