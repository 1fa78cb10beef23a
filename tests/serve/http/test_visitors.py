"""Which names of a real server and which pages are let in, and what is said of one that everybody reaches."""

from pathlib import Path

import httpx2 as httpx
import pytest
from tests.cli.command import lopa_export
from tests.serve.servers import Server, serving

BODY = b'{"model": "tiny", "prompt": "2 + 2", "max_tokens": 1}'


def posted(server: Server, **headers: str) -> httpx.Response:
    """An answer to what a page can send without asking anybody: a body that says it is plain text."""
    named = {name.capitalize(): value for name, value in headers.items()}
    return server.http.post("/v1/completions", content=BODY, headers={"Content-Type": "text/plain", **named})


def refused(answer: httpx.Response, code: str) -> bool:
    return answer.status_code == 403 and answer.json()["error"]["code"] == code


def test_a_name_that_leads_here_is_not_a_name_of_the_server(server: Server) -> None:
    before = server.metric('lopa_rejected_total{model="tiny",reason="host_not_allowed"')
    for name in ("elsewhere.example", "elsewhere.example:80", "localhost.example", "x@127.0.0.1.example", "[", ""):
        assert refused(posted(server, host=name), "host_not_allowed"), name
    for path in ("/", "/v1/models", "/health", "/metrics"):
        assert refused(server.http.get(path, headers={"Host": "elsewhere.example"}), "host_not_allowed"), path
    for name in ("localhost", "LOCALHOST:1", "localhost.", "a.localhost", "127.0.0.1", "[::1]:80", "10.1.2.3"):
        assert posted(server, host=name).status_code == 200, name
    assert server.metric('lopa_rejected_total{model="tiny",reason="host_not_allowed"') - before == 10


def test_pages_of_other_servers_are_refused_and_not_only_kept_from_reading(server: Server) -> None:
    server.until_idle()
    before = server.metric("lopa_steps_total")
    for origin in ("https://elsewhere.example", "null", "", "http://localhost:1", "http://127.0.0.1", "file://"):
        answer = posted(server, origin=origin)
        assert refused(answer, "origin_not_allowed"), origin
        assert "access-control-allow-origin" not in answer.headers
    assert server.metric("lopa_steps_total") == before
    for name in (f"127.0.0.1:{server.port}", f"localhost:{server.port}"):
        assert posted(server, host=name, origin=f"http://{name}").status_code == 200, "the server's own page"


def test_an_operator_names_a_proxy_and_pages_that_may_ask(chat_bundle: Path) -> None:
    options = ("--allow-host", "Models.example", "--cors", "https://app.example")
    with serving(chat_bundle, *options) as server:
        assert posted(server, host="models.example", origin="https://models.example").status_code == 200
        answer = posted(server, host="models.example:8443", origin="https://app.example")
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert posted(server).status_code == 200
        assert refused(posted(server, host="other.example"), "host_not_allowed")
        assert refused(posted(server, origin="https://models.example"), "origin_not_allowed"), "another Host"
        assert server.head == [f"tiny at {server.url}/v1\n"], "no warning"


@pytest.mark.parametrize("keyed", [False, True])
def test_a_server_that_everybody_reaches_says_so(chat_bundle: Path, tmp_path: Path, keyed: bool) -> None:
    keys = tmp_path / "keys"
    keys.write_text("a-key\n")
    with serving(chat_bundle, "--host", "0.0.0.0", *(("--api-keys", keys) if keyed else ())) as server:
        warnings = [line for line in server.head if line.startswith("warning: ")]
        assert [("--api-keys" in line and server.url in line) for line in warnings] == [True] * (not keyed)
        assert server.http.get("/health", headers={"Host": "any.example"}).status_code == 200
        assert refused(posted(server, origin="https://elsewhere.example"), "origin_not_allowed")


@pytest.mark.parametrize("name", ["https://models.example", "models.example:80", "", "a b", "*.example"])
def test_what_is_no_name_is_refused_before_the_bundle_is_opened(tmp_path: Path, name: str) -> None:
    done = lopa_export("serve", tmp_path / "no bundle", "--port", 0, "--allow-host", name)
    assert done.returncode == 2
    assert f"--allow-host {name}" in done.stderr
