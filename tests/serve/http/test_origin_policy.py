"""Accepted Host and Origin headers of a real server, and the warning about listening without authentication."""

from pathlib import Path

import httpx2 as httpx
import pytest
from tests.cli.command import lopa_export
from tests.serve.servers import Server, serving

BODY = b'{"model": "tiny", "prompt": "2 + 2", "max_tokens": 1}'


def post_text(server: Server, **headers: str) -> httpx.Response:
    """Post plain text, which a page can send without a CORS preflight."""
    named = {name.capitalize(): value for name, value in headers.items()}
    return server.http.post("/v1/completions", content=BODY, headers={"Content-Type": "text/plain", **named})


def is_rejected(answer: httpx.Response, code: str) -> bool:
    return answer.status_code == 403 and answer.json()["error"]["code"] == code


def test_foreign_hosts_are_rejected(server: Server) -> None:
    before = server.metric('lopa_rejected_total{model="tiny",reason="host_not_allowed"')
    for name in ("elsewhere.example", "elsewhere.example:80", "localhost.example", "x@127.0.0.1.example", "[", ""):
        assert is_rejected(post_text(server, host=name), "host_not_allowed"), name
    for path in ("/", "/v1/models", "/health", "/metrics"):
        assert is_rejected(server.http.get(path, headers={"Host": "elsewhere.example"}), "host_not_allowed"), path
    for name in ("localhost", "LOCALHOST:1", "localhost.", "a.localhost", "127.0.0.1", "[::1]:80", "10.1.2.3"):
        assert post_text(server, host=name).status_code == 200, name
    assert server.metric('lopa_rejected_total{model="tiny",reason="host_not_allowed"') - before == 10


def test_foreign_origins_are_rejected_before_any_work(server: Server) -> None:
    server.until_idle()
    before = server.metric("lopa_steps_total")
    for origin in ("https://elsewhere.example", "null", "", "http://localhost:1", "http://127.0.0.1", "file://"):
        answer = post_text(server, origin=origin)
        assert is_rejected(answer, "origin_not_allowed"), origin
        assert "access-control-allow-origin" not in answer.headers
    assert server.metric("lopa_steps_total") == before
    for name in (f"127.0.0.1:{server.port}", f"localhost:{server.port}"):
        assert post_text(server, host=name, origin=f"http://{name}").status_code == 200, "the server's own page"


def test_operator_allows_hosts_and_origins(chat_bundle: Path) -> None:
    options = ("--allow-host", "Models.example", "--cors", "https://app.example")
    with serving(chat_bundle, *options) as server:
        assert post_text(server, host="models.example", origin="https://models.example").status_code == 200
        answer = post_text(server, host="models.example:8443", origin="https://app.example")
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert post_text(server).status_code == 200
        assert is_rejected(post_text(server, host="other.example"), "host_not_allowed")
        assert is_rejected(post_text(server, origin="https://models.example"), "origin_not_allowed"), "another Host"
        opening, ready = server.head
        assert opening.startswith(f"{server.url}: opening "), "no warning"
        assert ready == f"tiny at {server.url}/v1\n"


def test_server_without_authentication_warns(chat_bundle: Path) -> None:
    with serving(chat_bundle, "--host", "0.0.0.0") as server:
        (warning,) = (line for line in server.head if line.startswith("warning: "))
        assert "--api-keys" in warning
        assert server.url in warning
        assert server.http.get("/health", headers={"Host": "any.example"}).status_code == 200
        assert is_rejected(post_text(server, origin="https://elsewhere.example"), "origin_not_allowed")


@pytest.mark.parametrize("name", ["https://models.example", "models.example:80", "", "a b", "*.example"])
def test_invalid_host_name_is_rejected_before_opening_the_bundle(tmp_path: Path, name: str) -> None:
    done = lopa_export("serve", tmp_path / "no bundle", "--port", 0, "--allow-host", name)
    assert done.returncode == 2
    assert f"--allow-host {name}" in done.stderr
