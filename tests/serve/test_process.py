"""Start and stop of a server: ports, draining, signals, keys and a full queue."""

import asyncio
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest
from tests.cli.command import lopa_export
from tests.serve.servers import STOPPING, Server, serving
from tests.serve.test_answers import CHAT, QUESTIONS
from tests.serve.test_streams import events, long_body


def start_stream(server: Server, body: dict[str, Any], lines: list[str]) -> threading.Thread:
    """Read a stream into `lines` on a thread. Return once it has begun."""
    begun = threading.Event()

    def read() -> None:
        with httpx.stream(
            "POST", f"{server.url}/v1/chat/completions", json=body, timeout=60, trust_env=False
        ) as answer:
            for line in answer.iter_lines():
                lines.append(line)
                begun.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert begun.wait(30)
    return thread


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_running_answers_finish_after_a_signal(chat_bundle: Path, number: int) -> None:
    lines: list[str] = []
    with serving(chat_bundle) as server:
        reader = start_stream(server, long_body(300, stream=True), lines)
        server.process.send_signal(number)
        server.until(lambda: server.http.get("/ready").status_code == 503)
        caught = server.http.post("/v1/chat/completions", json=long_body(1))
        assert (caught.status_code, caught.json()["error"]["code"]) == (503, "not_ready")
        assert server.http.get("/health").status_code == 200
        code, output = server.ended()
        reader.join(30)
    assert (code, output) == (0, f"{STOPPING}\n")
    assert [line for line in lines if line][-1] == "data: [DONE]"
    (last,) = [event for event in events(lines) if event["choices"][0]["finish_reason"]]
    assert last["choices"][0]["lopa"]["tokens"] == 300


def test_answers_beyond_the_drain_time_are_cut_with_an_error(chat_bundle: Path) -> None:
    lines: list[str] = []
    with serving(chat_bundle, "--drain", 0.1) as server:
        reader = start_stream(server, long_body(1900, stream=True), lines)
        code, output = server.stop()
        reader.join(30)
    assert code == 143
    assert "cut after 0.1 seconds" in output
    assert json.loads([line for line in lines if line][-1][6:])["error"]["code"] == "not_ready"


def test_second_signal_exits_at_once(chat_bundle: Path) -> None:
    with (
        serving(chat_bundle) as server,
        server.http.stream("POST", "/v1/chat/completions", json=long_body(1900, stream=True)),
    ):
        server.process.send_signal(signal.SIGTERM)
        server.until(lambda: server.http.get("/ready").status_code == 503)
        began = time.monotonic()
        assert server.stop()[0] == 143
        assert time.monotonic() - began < 2


def test_closing_the_terminal_stops_the_server(chat_bundle: Path) -> None:
    """Send more hangups, as the shell does, and close the terminal, for which the system sends one."""
    lines: list[str] = []
    terminal, name = os.openpty()
    in_terminal = f"import os, sys; os.setsid(); os.open({os.ttyname(name)!r}, os.O_RDWR)\n"
    in_terminal += "from lopa.cli.main import main; main(sys.argv[1:])"
    with serving(chat_bundle, program=("-c", in_terminal)) as server:
        reader = start_stream(server, long_body(200, stream=True), lines)
        server.process.send_signal(signal.SIGHUP)
        os.close(terminal)
        server.until(lambda: server.http.get("/ready").status_code == 503)
        server.process.send_signal(signal.SIGHUP)
        assert server.ended() == (0, f"{STOPPING}\n")
        reader.join(30)
    os.close(name)
    assert [line for line in lines if line][-1] == "data: [DONE]"


def test_hangup_ignored_by_the_caller_stays_ignored(chat_bundle: Path) -> None:
    """Start the server as nohup does."""
    ignoring = "import signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    ignoring += "from lopa.cli.main import main; main(sys.argv[1:])"
    with serving(chat_bundle, program=("-c", ignoring)) as server:
        server.process.send_signal(signal.SIGHUP)
        assert server.http.get("/ready").status_code == 200
        assert server.stop() == (0, f"{STOPPING}\n")


def test_port_in_use_is_reported_before_opening_the_bundle(server: Server, tmp_path: Path) -> None:
    done = lopa_export("serve", tmp_path / "no bundle", "--port", server.port)
    assert done.returncode == 2
    assert f"127.0.0.1 port {server.port}: Address already in use" in done.stderr
    assert lopa_export("serve", tmp_path / "no bundle", "--port", 0).returncode == 2
    assert "no such host" in lopa_export("serve", tmp_path, "--host", "no such host").stderr


def test_listens_on_loopback_only(server: Server) -> None:
    assert server.url.startswith("http://127.0.0.1:")
    own_address = socket.gethostbyname(socket.gethostname())
    if not own_address.startswith("127."):
        with pytest.raises(OSError), socket.create_connection((own_address, server.port), timeout=2):  # noqa: PT011
            pass


def test_missing_extra_is_named(tiny_bundle: Path) -> None:
    program = "import sys; sys.modules['starlette'] = None; from lopa.cli.main import main; main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", program, "serve", tiny_bundle], capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert "starlette is not installed" in done.stderr
    assert "starlette>=" in done.stderr or "[serve]" in done.stderr  # the second in a tree that is not installed


def test_keys(chat_bundle: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("\ufeff# ours\n\nfirst-key\n  schlüssel\n", encoding="utf-8")
    options = ("--api-keys", keys, "--cors", "https://here.example", "--host", "0.0.0.0")
    with serving(chat_bundle, *options) as server:
        assert "warning" not in "".join(server.head)
        body = {"model": "tiny", "messages": CHAT, "max_tokens": 1}
        for path, send in (
            ("/v1/chat/completions", server.http.post),
            ("/v1/completions", server.http.post),
            ("/v1/score", server.http.post),
            ("/v1/models", server.http.get),
            ("/v1/models/tiny", server.http.get),
        ):
            for shown in (
                None,
                "Bearer wrong",
                "Bearer",
                "Bearer first-ke",
                "first-key",
                "Basic first-key",
                "Bearer #",
            ):
                answer = send(path, headers={} if shown is None else {"Authorization": shown})
                assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        with pytest.raises(openai.AuthenticationError):
            server.client.models.list()
        for shown in (b"Bearer first-key", b"bearer first-key", "Bearer schlüssel".encode()):
            answer = server.http.post("/v1/chat/completions", json=body, headers={b"Authorization": shown})
            assert answer.status_code == 200
        assert {server.http.get(path).status_code for path in ("/health", "/ready", "/metrics")} == {200}
        for origin, allowed in (("https://here.example", True), ("https://there.example", False)):
            answer = server.http.get("/health", headers={"Origin": origin})
            assert ("access-control-allow-origin" in answer.headers) == allowed


def test_full_queue_is_reported_before_reading_the_body(server: Server) -> None:
    server.until_idle()
    rejected = server.metric('lopa_rejected_total{model="tiny",reason="queue_full"')
    several = long_body(n=6, temperature=1.0)
    answers: list[int] = []

    def ask() -> None:
        try:
            httpx.post(f"{server.url}/v1/chat/completions", json=several, timeout=0.01 + 3, trust_env=False)
        except httpx.TimeoutException:
            answers.append(0)

    clients = [threading.Thread(target=ask) for _ in range(2)]
    for client in clients:
        client.start()
    server.until(lambda: server.metric("lopa_requests_waiting") == 8)
    with pytest.raises(openai.RateLimitError) as caught:
        server.client.chat.completions.create(model="tiny", messages=CHAT)
    assert caught.value.code == "queue_full"
    assert caught.value.type == "rate_limit_error"
    load = "queue full: 12 unfinished requests, at most 4 running and 8 waiting requests; retry later"
    assert caught.value.body["message"] == load  # type: ignore[index]
    assert int(caught.value.response.headers["retry-after"]) > 0
    unread = server.http.post("/v1/chat/completions", content=b"not JSON")
    assert unread.status_code == 429
    assert server.metric('lopa_rejected_total{model="tiny",reason="queue_full"') - rejected == 2
    for client in clients:
        client.join()
    server.until_idle()


def test_concurrent_requests_get_their_own_answer_or_429(server: Server) -> None:
    server.until_idle()
    requested: list[Any] = [
        {"model": "tiny", "prompt": question, "max_tokens": 24, "temperature": temperature, "seed": 3}
        for question in QUESTIONS
        for temperature in (0.0, 1.0)
    ]
    expected = [server.client.completions.create(**each).choices[0].text for each in requested]
    assert len(set(expected)) > 6

    async def all_at_once() -> list[str | None]:
        client = openai.AsyncOpenAI(
            base_url=f"{server.url}/v1",
            api_key="none",
            max_retries=0,
            http_client=httpx.AsyncClient(timeout=60, trust_env=False),
        )

        async def one(number: int) -> str | None:
            try:
                if number % 3:
                    return (await client.completions.create(**requested[number % len(requested)])).choices[0].text
                stream = await client.completions.create(**requested[number % len(requested)], stream=True)
                return "".join([chunk.choices[0].text async for chunk in stream])
            except openai.RateLimitError:
                return None

        async with client:
            return await asyncio.gather(*map(one, range(40)))

    answers = asyncio.run(all_at_once())
    assert sum(answer is not None for answer in answers) >= 12, "4 running and 8 waiting requests"
    assert all(answer in (None, expected[number % len(expected)]) for number, answer in enumerate(answers))
    server.until_idle()


def test_the_series_and_the_capacity_of_a_small_server(chat_bundle: Path) -> None:
    """Every series exists with value 0 from the start. Equal greedy prompts are one request."""
    requested = time.time()
    with serving(chat_bundle, "--max-num-seqs", 1, "--queue", 1) as server:
        series = re.findall(r"^(lopa_\w+_total)\{(.*)\} (\S+)$", server.http.get("/metrics").text, re.MULTILINE)
        assert {(name, value) for name, labels, value in series if "endpoint" in labels or "reason" in labels} == {
            ("lopa_requests_total", "0.0"),
            ("lopa_rejected_total", "0.0"),
        }
        assert {labels for name, labels, _ in series if name == "lopa_requests_total"} == {
            f'endpoint="{endpoint}",finish_reason="{reason}",model="tiny"'
            for endpoint in ("chat/completions", "completions", "messages", "responses", "score")
            for reason in ("stop", "length", "tool_calls")
        }
        assert abs(server.metric("process_start_time_seconds") - requested) < 60
        for path, reason in (("/v1/nothing", "not_found"), ("/v1/completions", "method_not_allowed")):
            server.http.get(path)
            assert server.metric(f'lopa_rejected_total{{model="tiny",reason="{reason}"') == 1
        create, fields = server.client.completions.create, {"model": "tiny", "max_tokens": 1}
        assert len(create(**fields, prompt=["1", "2"]).choices) == 2
        assert len(create(**fields, prompt=["1 + 1"] * 3, n=2).choices) == 6
        for more in ({"prompt": ["1", "2", "3"]}, {"prompt": ["1 + 1"] * 3, "temperature": 1.0}):
            with pytest.raises(openai.BadRequestError):
                create(**fields, **more)


def exchange(server: Server, sent: bytes, seconds: float = 25.0) -> bytes:
    """Return the server's answer to raw bytes until it hangs up, sooner than by default (30 s)."""
    received = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as client:
        client.sendall(sent)
        while part := client.recv(65536):
            received += part
    return received


def test_slow_sender_times_out(server: Server) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n"
    began = time.monotonic()
    assert b" 408 " in exchange(server, head + b'{"model"')
    assert time.monotonic() - began > 1


@pytest.mark.parametrize("sent", [b"", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"])
def test_idle_client_times_out(server: Server, sent: bytes) -> None:
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", server.port), timeout=25) as client:
        client.sendall(sent)
        for _ in range(8):  # occasional bytes do not extend the time
            time.sleep(0.2)
            client.sendall(b"X" if sent else b"")
        assert client.recv(100) == b""
    assert time.monotonic() - began > 1


def test_endless_headers_are_rejected(server: Server) -> None:
    endless = b"GET /health HTTP/1.1\r\n" + b"".join(b"x-%d: %s\r\n" % (n, b"y" * 900) for n in range(200))
    with socket.create_connection(("127.0.0.1", server.port), timeout=25) as client:
        client.sendall(endless)
        assert client.recv(100).startswith(b"HTTP/1.1 400 ")
    for length, status in ((60_000, b" 200 "), (70_000, b" 400 ")):
        line = b"GET /health?" + b"x" * length
        assert status in exchange(server, line + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")


def test_without_descriptors_accepting_pauses(chat_bundle: Path) -> None:
    with serving(chat_bundle) as server:
        folder = Path(f"/proc/{server.process.pid}/fd")
        server.http.get("/ready")
        limit = max(int(each.name) for each in folder.iterdir()) + 5
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (limit, limit))
        begin = time.monotonic()
        idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(40)]
        server.until(lambda: max(int(each.name) for each in folder.iterdir()) >= limit - 1)
        time.sleep(0.2)
        for each in idle:
            each.close()
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
            client.sendall(b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(15) == b"HTTP/1.1 200 OK"
        code, output = server.stop()
        lines = output.splitlines()
    assert code == 0
    assert "Traceback" not in output
    assert 1 <= sum("no connection accepted" in line for line in lines) <= time.monotonic() - begin + 1
    assert len(lines) <= time.monotonic() - begin + 3


def test_new_connections_replace_idle_ones(chat_bundle: Path) -> None:
    """Open more connections than files. The longest idle ones close, the others after a while, and a stream stays."""
    few = "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (150, 200))\n"
    few += "from lopa.cli.main import main; main(sys.argv[1:])"
    request = b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n"
    lines: list[str] = []
    with serving(chat_bundle, "--idle-timeout", 1, program=("-c", few)) as server:
        assert server.metric("process_max_fds") == 200
        reader = start_stream(server, long_body(300, stream=True), lines)
        idle = [socket.create_connection(("127.0.0.1", server.port), timeout=25) for _ in range(180)]
        idle[-1].sendall(request)
        assert idle[-1].recv(15) == b"HTTP/1.1 200 OK"
        assert idle[0].recv(1) == b""
        idle[-2].sendall(request)
        for each in idle[-2:]:
            while each.recv(65536):
                pass
        reader.join(30)
        for each in idle:
            each.close()
        code, output = server.stop()
    assert [line for line in lines if line][-1] == "data: [DONE]"
    assert (code, "100 connections, closing idle ones" in output) == (0, True)
    assert len(output.splitlines()) < 10
