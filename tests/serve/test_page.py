"""The web page: its parts and, in a real Chromium with a real server, what users see."""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.serve.chromium import Browser, chromium, in_chromium
from tests.serve.servers import Server, serving
from tests.serve.test_answers import QUESTIONS
from tests.serve.test_streams import events

from lopa.runtime import Decoder

KEY = "a-key-of-the-test"
CONFIGS = ({"strategy": "lopa", "branches": 4}, {"strategy": "d2f"})
"""Default options of the two runs."""
CONTROL, UP, DOWN, ENTER, SPACE, TAB = 2, ("ArrowUp", 38), ("ArrowDown", 40), ("Enter", 13), (" ", 32), ("Tab", 9)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("chromium")) as started:
        yield started


class Parts(HTMLParser):
    """Parser that collects the attributes of all elements and the inline content."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.attributes: list[tuple[str, str, str | None]] = []
        self.inline: dict[str, list[str]] = {"script": [], "style": []}
        self._in = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self._in = tag
        self.attributes += [(tag, *each) for each in attrs]

    def handle_data(self, data: str) -> None:
        if self._in in self.inline and data.strip():
            self.inline[self._in].append(data)

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002
        self._in = ""


def test_page_is_served_with_a_strict_policy(server: Server) -> None:
    answer = server.http.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    parts = Parts(answer.text)
    policy = dict(each.split(" ", 1) for each in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == policy["frame-ancestors"] == "'none'"
    assert policy["connect-src"] == "'self'"
    for kind, (inline,) in parts.inline.items():
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert policy[f"{kind}-src"] == f"'sha256-{digest}'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert server.http.post("/").status_code == 405


def test_page_loads_nothing_else_and_inserts_text_only(server: Server) -> None:
    text = server.http.get("/").text
    named = [value for _, name, value in Parts(text).attributes if name in ("src", "href", "action", "srcset", "data")]
    assert named == ["data:,"]
    assert not re.search(r"(?i)https?:|url\(|@import|import\(|\bimport ", text)
    assert not [name for _, name, _ in Parts(text).attributes if name.startswith("on") or name == "style"]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|Function\(|srcdoc", text)


def test_tables_of_the_page_name_its_fields(server: Server) -> None:
    """A name without its field would end the script before it shows anything."""
    page = server.http.get("/").text
    fields = set(re.findall(r'name="(\w+)"', page))
    tables = re.findall(r"const (?:WITHOUT|LABELS) = \{(.*?)\n\};", page, re.DOTALL)
    named = [
        set(re.findall(pattern, table)) for pattern, table in zip((r"(\w+): \[", r'"lopa\.(\w+)"'), tables, strict=True)
    ]
    assert all(named)
    assert set().union(*named) - fields == {"parts"}


def test_drafts_have_confidences_and_unmasked_counts(server: Server) -> None:
    body = {
        "model": "tiny",
        "prompt": QUESTIONS[0],
        "max_tokens": 44,
        "stream": True,
        "stream_options": {"include_drafts": True},
        "lopa": {"branches": 4, "block_size": 16, "stop_at_eos": False},
    }
    with server.http.stream("POST", "/v1/completions", json=body) as answer:
        lopa_fields = [
            chunk["choices"][0]["lopa"] for chunk in events(answer.iter_lines()) if "lopa" in chunk["choices"][0]
        ]
    *drafts, end = lopa_fields
    assert {len(each["confidences"]) for each in drafts} > {1}
    shown: list[str | None] = []
    for each in drafts:
        assert len(each["confidences"]) == each["branches"]
        assert each["branch"] == each["confidences"].index(max(each["confidences"]))
        shown = [*shown[: each["positions"]], *[None] * (each["positions"] - len(shown))]
        for token in each["tokens"]:
            shown[token["index"]] = token["text"]
        assert "".join("░" if text is None else text for text in shown) == each["draft"]
        assert all(1 <= token["step"] <= each["step"] for token in each["tokens"] if token["text"])
        assert each["unmasked"] + each["draft"].count("░") in (16, 32, 44), "complete blocks"
    assert [each["step"] for each in drafts] == sorted({each["step"] for each in drafts})
    assert sorted({each["unmasked"] for each in drafts}) == [each["unmasked"] for each in drafts]
    assert drafts[-1]["unmasked"] == end["tokens"] == 44


class Page:
    """Page in a browser, used with the keyboard."""

    def __init__(self, browser: Browser, server: Server) -> None:
        self.browser = browser
        browser.open(f"{server.url}/")
        browser.until("model !== null || !byId('problem').hidden")

    def send_as_text(self) -> None:
        """Select plain text, since chat is the default with a template."""
        self.focus("#kind")
        self.browser.press(*UP)

    def focus(self, selector: str) -> None:
        """Focus an element with the tab key only."""
        self.browser.value("document.activeElement.blur()")
        for _ in range(40):
            self.browser.press(*TAB)
            if self.browser.value(f"document.activeElement.matches({selector!r})"):
                return
        raise AssertionError(f"{selector} cannot be reached")

    def write(self, selector: str, text: str) -> None:
        self.focus(selector)
        self.browser.value("document.activeElement.select()")
        self.browser.type(text)

    def run(self, prompt: str) -> None:
        self.write("#prompt", prompt)
        self.browser.press(*ENTER, modifiers=CONTROL)

    def ended(self) -> list[str]:
        """Wait for the end of the runs and return their status texts."""
        self.browser.until("!running && runs[0].part('status').textContent")
        statuses: list[str] = self.browser.value("runs.map((each) => each.part('status').textContent)")
        return statuses

    def shown(self, name: str) -> list[str]:
        """Return the text of a part of both runs."""
        texts: list[str] = self.browser.value(f"runs.map((each) => each.part({name!r}).textContent)")
        return texts


@in_chromium
def test_two_runs_side_by_side(browser: Browser, server: Server) -> None:
    whole = [
        server.client.completions.create(
            model="tiny", prompt=QUESTIONS[0], max_tokens=128, temperature=0, extra_body={"lopa": config}
        ).choices[0]
        for config in CONFIGS
    ]
    page = Page(browser, server)
    assert browser.value("document.getElementById('model').textContent") == ": tiny"
    page.send_as_text()
    page.run(QUESTIONS[0])
    statuses = page.ended()
    for number, choice in enumerate(whole):
        lopa_fields = choice.model_extra["lopa"]  # type: ignore[index]
        assert statuses[number].startswith(f"{lopa_fields['tokens']} tokens in {lopa_fields['steps']} forwards: ")
        assert page.shown("answer")[number] == choice.text
        assert page.shown("forwards")[number] == str(lopa_fields["steps"])
        assert page.shown("plain")[number] == str(lopa_fields["tokens"])
        assert page.shown("rate")[number] == f"{lopa_fields['tokens_per_forward']:.2f}"
        meters = [browser.value(f"runs[{number}].part('{name}').value") for name in ("ours", "theirs")]
        assert meters == [lopa_fields["steps"], lopa_fields["tokens"]]
        drafts = browser.value(f"runs[{number}].drafts")
        texts = ["".join(token["text"] for token in each["tokens"] if token) for each in drafts]
        assert texts[-1] == choice.text
        committed = [each["committed"] for each in drafts]
        assert committed == sorted(committed)
        steps = [each["step"] for each in drafts]
        assert steps == sorted(set(steps))
        assert steps[-1] == lopa_fields["steps"]
        for each in drafts:
            assert each["branch"] == each["confidences"].index(max(each["confidences"]))
        assert max(each["branches"] for each in drafts) == (4 if number == 0 else 1)
        winner = browser.value(f"runs[{number}].part('step').textContent")
        assert re.match(rf"Step {steps[-1]} of {steps[-1]}: (anchor|lookahead \d) won, \d+ unmasked", winner)
    assert browser.complaints == []
    assert all(address.startswith((server.url, "data:")) for address in browser.requested), browser.requested


@in_chromium
def test_chat_with_a_single_run(browser: Browser, server: Server) -> None:
    chat_messages: Any = [{"role": "user", "content": QUESTIONS[1]}]
    request_init: Any = {
        "model": "tiny",
        "messages": chat_messages,
        "max_tokens": 24,
        "extra_body": {"lopa": {"branches": 2}},
    }
    whole = server.client.chat.completions.create(**request_init).choices[0].message.content
    page = Page(browser, server)
    page.write("#tokens", "24")
    page.write("[name=branches]", "2")
    page.focus("#two")
    browser.press(*SPACE, text=" ")
    page.run(QUESTIONS[1])
    assert page.ended()[1] == "Not run yet."
    assert page.shown("answer") == [whole, ""]
    assert browser.value("runs[1].root.checkVisibility()") is False
    assert any(address.endswith("/v1/chat/completions") for address in browser.requested)
    assert browser.complaints == []


@in_chromium
def test_a_text_with_holes_is_shown_with_its_given_text(
    browser: Browser, family_bundle: Callable[..., Path], server: Server
) -> None:
    text = "Ivy has <hole:4> and finds <hole:2-5> more."
    texts = (text, "<hole:3> and <hole:2>")
    with serving(family_bundle("llada")) as holes, Decoder.open(family_bundle("llada"), threads=1) as decoder:
        page = Page(browser, holes)
        page.focus("#kind")
        browser.press(*DOWN)
        assert browser.value("[byId('kind').value, byId('prompt').value]") == ["holes", browser.value("EXAMPLES.holes")]
        browser.value("runs[1].strategy.value = 'threshold'; runs[1].updateOptions()")
        configs = ({"strategy": "lopa", "branches": 4}, {"strategy": "threshold", "skip_threshold": 0.9})
        for each in texts:
            page.run(each)
            assert all(status.endswith(": holes filled") for status in page.ended()), page.ended()
            whole = [decoder.fill(each, attention="full", **config).filled_text for config in configs]  # type: ignore[arg-type]
            assert page.shown("answer") == whole
        page.run("no hole")
        (first, _) = page.ended()
        assert first.startswith("Prompt: a text without a hole.")
    page = Page(browser, server)
    page.focus("#kind")
    browser.press(*DOWN)
    page.run(text)
    assert "D2F adapter" in page.ended()[0]


@in_chromium
def test_api_keys_html_in_names_and_a_server_that_stops(browser: Browser, chat_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"{KEY}\n")
    options = ("--model", "<b>tiny</b>", "--api-keys", tmp_path / "keys", "--drain", 0.1)
    with serving(chat_bundle, *options) as keyed:
        page = Page(browser, keyed)
        assert "needs an API key" in browser.until("!byId('problem').hidden && byId('problem').textContent")
        assert browser.value("document.activeElement.id") == "key"
        page.write("#key", "kľúč")
        page.run(QUESTIONS[0])
        page.ended()
        assert "API key: it has a character" in browser.value("byId('problem').innerText")
        page.write("#key", "a wrong one")
        page.run(QUESTIONS[0])
        assert page.ended() == ["Not run: the model is not loaded."] * 2
        assert "API key: the server does not accept it." in browser.value("byId('problem').innerText")
        page.write("#key", KEY)
        page.focus("#go")
        assert browser.until("byId('model').textContent") == ": <b>tiny</b>"
        assert browser.value("byId('problem').hidden")
        assert browser.value("document.querySelector('h1 b')") is None
        page.write("#tokens", "1000")
        browser.value("runs.forEach((each) => { each.strategy.value = 'vanilla'; each.updateOptions(); })")
        page.run(QUESTIONS[0])
        browser.until("runs.every((each) => each.drafts.length > 2)")
        keyed.stop()
        assert all("Server stopped before the answer was complete" in statuses for statuses in page.ended())
        page.run(QUESTIONS[0])
        assert all(status.startswith("The server cannot be reached.") for status in page.ended())


@in_chromium
def test_truncated_stream_is_an_error_and_html_stays_text(browser: Browser, server: Server) -> None:
    Page(browser, server)
    read = "(async () => { const seen = []; try { for await (const each of events(new Response(%r))) seen.push(each); }"
    read += " catch (error) { seen.push(error.message); } return seen; })()"
    assert browser.value(read % "data: {}\n\n: keep-alive\n\ndata: [DONE]\n\n") == [{}]
    closed = "The connection closed before the answer was complete.\nWhat to do: press Run again."
    assert browser.value(read % "data: {}\n\ndata: {") == [{}, closed]
    assert browser.value(read % 'data: {"error": {"message": "it broke", "param": null}}\n\n') == ["It broke."]
    pieces = ["<img src=x onerror=alert(1)>", "<b>a</b>", "<script>alert(1)</script>"]
    tokens = [{"index": index, "text": text, "step": 4, "branch": None} for index, text in enumerate(pieces)]
    step = {"step": 4, "branch": 0, "branches": 1, "confidences": [-1], "unmasked": 3, "positions": 5, "tokens": tokens}
    browser.value(f"runs[0].draft({json.dumps(step)}); runs[0].display(); runs[0].explain(runs[0].tokens[0])")
    answer = "runs[0].part('answer')"
    assert browser.value(f"{answer}.textContent") == "".join(pieces) + "··"
    assert browser.value(f"[...{answer}.querySelectorAll('*')].map((each) => each.localName)") == ["span"] * 7
    assert browser.value("runs[0].part('detail').textContent") == f"“{pieces[0]}”: step 4, anchor"
    assert browser.value("runs[0].part('detail').childElementCount") == 0
    unknown = {"text": "e", "how": "its step is not known"}
    final = "finalTokens([{ text: 'ab', step: 1 }, null, { text: 'cd', step: 2 }], %r)"
    assert browser.value(final % "abc") == [{"text": "ab", "step": 1}, {"text": "c", "step": 2}]
    assert browser.value(final % "abcde") == [{"text": "ab", "step": 1}, {"text": "cd", "step": 2}, unknown]
    assert browser.value(final % "cd") == [unknown | {"text": "cd"}], "text without its reasoning has no colours"
    assert browser.value("runs[0].part('step').textContent") == (
        "Step 4 of 4: anchor won, 3 unmasked, with the steps before, which were not received-1.00"
    )
    assert browser.complaints == []
