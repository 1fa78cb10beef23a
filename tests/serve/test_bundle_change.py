"""Another bundle for a running server, and other servers for running clients: no request is lost."""

import json
import shutil
import signal
import threading
from contextlib import ExitStack
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest
from tests.chat_bundles import with_chat_template
from tests.serve.balancer import Balancer
from tests.serve.servers import STOPPING, WAIT, Server, serving
from tests.serve.test_answers import CHAT
from tests.serve.test_streams import long_body

UPDATES = 1
ANSWERS = 16
"""Answers before and after a server of an update stops."""


class Clients:
    """Threads that each send one request after another with OpenAI's client and its connection pool."""

    def __init__(self, url: str, number: int, retries: int) -> None:
        self.answers: list[tuple[str, str | None]] = []
        """System fingerprint and text of each answer."""
        self.errors: list[Exception] = []
        self._is_done = threading.Event()
        self._client = openai.OpenAI(
            base_url=f"{url}/v1",
            api_key="none",
            max_retries=retries,
            http_client=httpx.Client(timeout=WAIT, trust_env=False),
        )
        self._threads = [threading.Thread(target=self._send, args=(bool(each % 2),)) for each in range(number)]

    def __enter__(self) -> "Clients":
        for thread in self._threads:
            thread.start()
        self.until_more(1)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_done.set()
        for thread in self._threads:
            thread.join(WAIT)
        self._client.close()

    def until_more(self, number: int) -> None:
        """Wait for more answers, and raise the error of a request."""
        wanted = len(self.answers) + number
        Server.until(lambda: self.errors or len(self.answers) >= wanted)
        assert not self.errors

    def _send(self, stream: bool) -> None:
        body: dict[str, Any] = {"model": "tiny", "messages": CHAT, "max_tokens": 16}
        create = self._client.chat.completions.create
        while not (self._is_done.is_set() or self.errors):
            try:
                if stream:
                    chunks = list(create(**body, stream=True))
                    text = "".join(each.choices[0].delta.content or "" for each in chunks)
                    assert chunks[-1].choices[0].finish_reason
                    self.answers.append((chunks[0].system_fingerprint or "", text))
                else:
                    answer = create(**body)
                    self.answers.append((answer.system_fingerprint or "", answer.choices[0].message.content))
            except Exception as error:  # the test's thread raises it
                self.errors.append(error)


@pytest.fixture
def link(chat_bundle: Path, tmp_path: Path) -> Path:
    """Return a link to a bundle."""
    (tmp_path / "current").symlink_to(chat_bundle)
    return tmp_path / "current"


def change(link: Path, target: Path, server: Server, result: str = "succeeded") -> None:
    """Change the link and the server's bundle."""
    before = server.metric(f'lopa_reloads_total{{model="tiny",result="{result}"')
    (link.parent / "next").symlink_to(target)
    (link.parent / "next").rename(link)
    server.process.send_signal(signal.SIGHUP)
    server.until(lambda: server.metric(f'lopa_reloads_total{{model="tiny",result="{result}"') > before)


def test_a_bundle_changes_without_a_lost_request(chat_bundle: Path, link: Path, tmp_path: Path) -> None:
    """Change to the same, another, a truncated, an altered and a missing bundle while clients send requests."""
    other = with_chat_template(chat_bundle, tmp_path / "other", "{{ messages[0].content[-40:] }} Answer:")
    broken = [Path(shutil.copytree(other, tmp_path / name)) for name in ("truncated", "altered")]
    weights = (other / "model.onnx.data").read_bytes()
    (broken[0] / "model.onnx.data").write_bytes(weights[:-100])
    (broken[1] / "model.onnx.data").write_bytes(bytes(100) + weights[100:])
    with serving(link) as server, Clients(server.url, 4, retries=0) as clients:
        first = clients.answers[0]
        change(link, chat_bundle, server)
        clients.until_more(8)
        for bundle in (*broken, tmp_path / "missing"):
            change(link, bundle, server, "failed")
        clients.until_more(8)
        assert set(clients.answers) == {first}
        slow, content = HTTPConnection("127.0.0.1", server.port), json.dumps(long_body(1)).encode()
        slow.putrequest("POST", "/v1/chat/completions")
        slow.putheader("Content-Length", str(len(content)))
        slow.endheaders(content[:9])
        assert server.metric(f'lopa_build_info{{bundle="{first[0][-12:]}"') == 1
        change(link, other, server)
        assert server.http.get("/ready").status_code == 200
        clients.until_more(8)
        second = clients.answers[-1]
        clients.until_more(8)
        assert {*clients.answers} == {first, second}
        assert first[0] != second[0]
        shown = [server.metric(f'lopa_build_info{{bundle="{each[0][-12:]}"') for each in (first, second)]
        assert shown == [0, 1], "only the new bundle"
        assert first[1] != second[1]
        assert clients.answers[-8:] == [second] * 8
        slow.send(content[9:])
        assert json.load(slow.getresponse())["system_fingerprint"] == second[0]
        slow.close()
        code, output = server.stop()
    assert code == 0
    assert (output.count(" is now "), output.count("the bundle is not replaced")) == (2, 3)
    for part in ("truncated", "altered", "missing", "model.onnx.data"):
        assert part in output


def test_a_long_answer_keeps_its_bundle(chat_bundle: Path, link: Path, tmp_path: Path) -> None:
    """Send two hangups during an answer: the second change waits until the first bundle is closed."""
    other = with_chat_template(chat_bundle, tmp_path / "other", "Answer:")
    with serving(link) as server:
        with server.http.stream("POST", "/v1/chat/completions", json=long_body(300, stream=True)) as answer:
            lines = answer.iter_lines()
            first = next(lines)
            change(link, other, server)
            server.process.send_signal(signal.SIGHUP)
            short = server.http.post("/v1/chat/completions", json=long_body(1)).json()
            assert short["system_fingerprint"] not in first
            assert server.metric("lopa_requests_running") == 1
            assert [line for line in lines if line][-1] == "data: [DONE]"
        server.until(lambda: server.metric('lopa_reloads_total{model="tiny",result="succeeded"') == 2)
        server.process.send_signal(signal.SIGHUP)
        with server.http.stream("POST", "/v1/chat/completions", json=long_body(300, stream=True)) as answer:
            server.process.send_signal(signal.SIGTERM)
            server.process.send_signal(signal.SIGHUP)  # ignored while the server stops
            assert [line for line in answer.iter_lines() if line][-1] == "data: [DONE]"
        code, output = server.ended()
    assert (code, output.count(STOPPING)) == (0, 1)


def _refuses(server: Server) -> bool:
    """Return True if the server is not ready. The client's connection was idle and may close while it sends."""
    try:
        return server.http.get("/ready").status_code == 503
    except httpx.TransportError:
        return False


def test_every_answer_of_a_stopping_server_closes_its_connection(chat_bundle: Path) -> None:
    with serving(chat_bundle) as server:
        with server.http.stream("POST", "/v1/chat/completions", json=long_body(300, stream=True)) as answer:
            assert "connection" not in server.http.get("/health").headers
            server.process.send_signal(signal.SIGTERM)
            server.until(partial(_refuses, server))
            for path, status in (("/health", 200), ("/v1/models", 200), ("/v1/nothing", 404)):
                found = server.http.get(path)
                assert (found.status_code, found.headers["connection"]) == (status, "close")
            found = server.http.post("/v1/chat/completions", json=long_body(1))
            assert (found.status_code, found.headers["connection"]) == (503, "close")
            assert [line for line in answer.iter_lines() if line][-1] == "data: [DONE]"
        assert server.ended()[0] == 0


def test_clients_with_pools_survive_a_rolling_update(chat_bundle: Path) -> None:
    """Replace a server behind a balancer of connections, as Kubernetes does."""
    with ExitStack() as servers:
        old = servers.enter_context(serving(chat_bundle))
        with Balancer(old.port) as balancer, Clients(balancer.url, 8, retries=2) as clients:
            for _ in range(UPDATES):
                new = servers.enter_context(serving(chat_bundle))
                balancer.ports = [old.port, new.port]
                clients.until_more(ANSWERS)
                balancer.ports = [new.port]
                with old.http.stream("POST", "/v1/chat/completions", json=long_body(1900, stream=True)):
                    old.process.send_signal(signal.SIGTERM)  # the long answer keeps the server from ending
                    clients.until_more(ANSWERS)
                assert old.ended()[0] == 0
                old = new
    assert not clients.errors
