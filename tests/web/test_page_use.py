"""Use of the page in Chromium, as `serve` sends it and as `page` writes it: one page, the same tests."""

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import PROMPT, lopa_export
from tests.serve.chromium import Browser, chromium, in_chromium
from tests.serve.servers import serving
from tests.web.installed import WEB, no_web
from tests.web.static_host import StaticFiles, hosted

from lopa import step_table
from lopa.runtime.decoder import Decoder
from lopa.runtime.requests.result import DraftEvent

PLACES = ("serve", "page")
OPTIONS: tuple[dict[str, Any], ...] = (
    {"strategy": "lopa", "branches": 4, "skip_threshold": 0.9},
    {"strategy": "d2f", "skip_threshold": 0.9},
)
"""Default options of the two runs."""
ENTER, TAB, END, LEFT, RIGHT = ("Enter", 13), ("Tab", 9), ("End", 35), ("ArrowLeft", 37), ("ArrowRight", 39)
READY = "typeof showModel === 'function' && (isOffered || hasFailed)"


def in_a_page(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that needs the browser and the npm packages."""
    marked: Callable[..., None] = pytest.mark.web(no_web(in_chromium(test)))
    return marked


@pytest.fixture(scope="module")
def folder(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the toy's page."""
    made = tmp_path_factory.mktemp("page") / "page"
    done = lopa_export("page", tiny_bundle, "-o", made, "--packages", WEB)
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture(scope="module")
def addresses(folder: Path, tiny_bundle: Path) -> Iterator[dict[str, str]]:
    """Return the address of each place."""
    with ExitStack() as opened:
        yield {
            "serve": opened.enter_context(serving(tiny_bundle)).url,
            "page": opened.enter_context(hosted(folder)),
        }


@pytest.fixture(params=PLACES)
def address(request: pytest.FixtureRequest, addresses: dict[str, str]) -> str:
    return addresses[request.param]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.fixture
def browser(shared: Browser) -> Browser:
    """Return the browser with a desktop's window, in light colours, and with a network."""
    set_width(shared, 1200)
    set_scheme(shared, "light")
    set_network(shared, is_offline=False)
    return shared


def set_width(browser: Browser, width: int) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.call("Emulation.setDeviceMetricsOverride", **size)


def set_scheme(browser: Browser, scheme: str) -> None:
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])


def set_network(browser: Browser, *, is_offline: bool) -> None:
    speed = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    browser.call("Network.emulateNetworkConditions", offline=is_offline, **speed)


def settled(browser: Browser, expression: str) -> Any:
    """Wait as `until` does, also while the page loads itself again."""
    for _ in range(20):
        try:
            return browser.until(expression)
        except AssertionError as error:
            if "navigated" not in str(error) and "not defined" not in str(error):
                raise
            time.sleep(0.2)
    raise AssertionError(f"never settled: {expression}")


def open_page(browser: Browser, address: str, suffix: str = "") -> None:
    browser.open("about:blank")
    browser.call("Page.navigate", url=f"{address}/{suffix}")
    settled(browser, READY)


def run_page(browser: Browser, prompt: str = PROMPT) -> list[str]:
    """Send the prompt, and return the status of both runs at the end."""
    browser.value(f"void (byId('prompt').value = {json.dumps(prompt)})")
    browser.value("void byId('form').requestSubmit()")
    return ended(browser)


def ended(browser: Browser) -> list[str]:
    settled(browser, "!running && runs[0].part('status').textContent !== 'Not run yet.'")
    statuses: list[str] = browser.value("runs.map((each) => each.part('status').innerText)")
    return statuses


def python_drafts(bundle: Path, options: dict[str, Any]) -> list[dict[int, tuple[int, float, int | None]]]:
    """Return for each step what Python's table says of the tokens that are there: step, probability and branch."""
    steps: list[Any] = []
    written: dict[int, tuple[int, float, int | None]] = {}
    found = []
    with Decoder.open(bundle, threads=1) as decoder:
        for event in decoder.stream(PROMPT, max_new_tokens=128, drafts=True, on_step=steps.append, **options):
            if not isinstance(event, DraftEvent):
                continue
            table, anchor = step_table(steps[-1]), len(steps[-1].branches) - 1
            for row in zip(*table.values(), strict=True):
                step, position, _, probability, _, unmasked, branch = (each.item() for each in row)
                if unmasked:
                    written[position - event.start] = step, probability, None if branch == anchor else branch
            there = [index for index, token in enumerate(event.token_ids) if token is not None]
            found.append({index: written[index] for index in there})
    return found


@in_a_page
def test_tokens_have_the_step_branch_and_probability_of_python(
    browser: Browser, address: str, tiny_bundle: Path
) -> None:
    open_page(browser, address)
    run_page(browser)
    for number, options in enumerate(OPTIONS):
        shown = browser.value(f"runs[{number}].drafts.map((each) => [each.step, each.tokens])")
        expected = python_drafts(tiny_bundle, options)
        assert shown[-1][0] == len(expected) > 4
        for number_of_step, tokens in shown:  # a slow reader of a server's stream may miss drafts
            known = expected[number_of_step - 1]
            assert {index for index, token in enumerate(tokens) if token} == set(known)
            for index, (step, probability, branch) in known.items():
                assert (tokens[index]["step"], tokens[index]["branch"]) == (step, branch)
                assert tokens[index]["probability"] == pytest.approx(probability, abs=1e-3)
    assert browser.complaints == []


@in_a_page
def test_the_slider_shows_the_answer_after_each_step(browser: Browser, address: str, tiny_bundle: Path) -> None:
    open_page(browser, address)
    run_page(browser)
    with Decoder.open(tiny_bundle, threads=1) as decoder:
        events = list(decoder.stream(PROMPT, max_new_tokens=128, drafts=True, **OPTIONS[0]))
    python = {event.step: event for event in events if isinstance(event, DraftEvent)}
    drafts = [python[step] for step in browser.value("runs[0].drafts.map((each) => each.step)")]
    assert browser.value("runs[0].part('answer').textContent") == events[-1].result.text  # type: ignore[union-attr]
    browser.value("runs[0].slider.focus()")
    for place in range(len(drafts) - 1, 0, -1):
        browser.press(*LEFT)
        assert browser.value("runs[0].slider.value") == str(place)
        draft = drafts[place - 1]
        assert browser.value("runs[0].part('answer').textContent") == draft.text.replace("░", "·")
        assert browser.value("runs[0].part('answer').querySelectorAll('.masked').length") == draft.text.count("░")
        described = browser.value("runs[0].slider.getAttribute('aria-valuetext')")
        assert described.startswith(f"Step {draft.step} of {len(python)}: ")
        new = browser.value("[...runs[0].part('answer').querySelectorAll('.new')].map((each) => each.token.step)")
        earlier = drafts[place - 2].step if place > 1 else 0
        assert draft.step in new
        assert set(new) <= set(range(earlier + 1, draft.step + 1))
    browser.press(*LEFT)
    assert set(browser.value("runs[0].part('answer').textContent")) == {"·"}
    browser.value("void runs[0].part('replay').click()")
    browser.until(f"runs[0].slider.value === '{len(drafts)}'")


@in_a_page
def test_the_keyboard_alone_runs_and_reads(browser: Browser, address: str) -> None:
    """The focus stays on Run, which stays reachable while it has no effect."""
    open_page(browser, address)
    browser.value("byId('prompt').focus()")
    for _ in range(12):
        if browser.value("document.activeElement.id") == "go":
            break
        browser.press(*TAB)
    assert browser.value("document.activeElement.matches('#go:focus-visible')")
    assert browser.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    browser.value("""{
        globalThis.seen = [];
        new MutationObserver(() => seen.push([byId('go').ariaDisabled, document.activeElement.id]))
            .observe(byId('go'), { attributes: true });
    }""")
    browser.press(*ENTER, text="\r")
    ended(browser)
    assert browser.value("seen") == [["true", "go"], ["false", "go"]]
    browser.value("runs[0].part('answer').focus()")
    browser.press(*RIGHT)
    browser.press(*RIGHT)
    token = browser.value("runs[0].final[1]")
    branch = "anchor" if token["branch"] is None else f"lookahead {token['branch'] + 1}"
    detail = f"“{token['text']}”: step {token['step']}, probability {token['probability']:.3f}, {branch}"
    assert browser.value("runs[0].part('detail').textContent") == detail
    browser.press(*END)
    assert browser.value("document.activeElement.token.text") == browser.value("runs[0].final.at(-1).text")
    assert browser.value("[...document.querySelectorAll('[role=status], [role=alert]')].length") == 7


@pytest.mark.parametrize("width", [320, 360])
@in_a_page
def test_a_phone_scrolls_down_only_and_cuts_no_name(width: int, browser: Browser, address: str) -> None:
    set_width(browser, width)
    open_page(browser, address)
    run_page(browser, "Unbroken" * 40)
    browser.value("""{
        const long = 'w'.repeat(300);
        location.hash = `prompt=a&strategy.1=${'w'.repeat(200_000)}`;
        runs[0].say(long, true);
        runs[0].final = [{ text: long, step: 1, branch: null }];
        runs[0].display();
        runs[0].explain(runs[0].final[0]);
    }""")
    browser.until("!byId('problem').hidden")
    assert "strategy.1 wwww" in browser.value("byId('problem').innerText")
    assert 80 < len(browser.value("byId('problem').innerText")) < 300
    assert browser.value("[document.documentElement.scrollWidth, innerWidth]") == [width, width]
    ends = "[...document.querySelectorAll('main *')].map((each) => each.getBoundingClientRect().right)"
    assert browser.value(f"Math.max(...{ends})") <= width
    cut = """(() => {
        const names = [];
        for (const select of document.querySelectorAll('select')) {
            const { font, paddingLeft, paddingRight } = getComputedStyle(select);
            const context = document.createElement('canvas').getContext('2d');
            context.font = font;
            const room = select.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight) - 16; // the arrow
            for (const option of select.options)
                if (context.measureText(option.textContent).width > room) names.push(option.textContent);
        }
        return names.filter((name) => !name.includes('chat template'));
    })()"""
    assert browser.value(cut) == []


CONTRASTS = """[...document.querySelectorAll('.answer .by-step, .note, .legend, label')].map((node) => {
    const colour = (text) => {
        const context = document.createElement('canvas').getContext('2d');
        context.fillStyle = text;
        context.fillRect(0, 0, 1, 1);
        const [r, g, b] = [...context.getImageData(0, 0, 1, 1).data].map((value) => value / 255)
            .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    let behind = node;
    while (getComputedStyle(behind).backgroundColor === 'rgba(0, 0, 0, 0)') behind = behind.parentElement;
    const [low, high] = [colour(getComputedStyle(node).color), colour(getComputedStyle(behind).backgroundColor)].sort();
    return (high + 0.05) / (low + 0.05);
})"""
"""Contrasts by WCAG's formula."""


@in_a_page
def test_colours_can_be_read_in_light_and_dark(browser: Browser, address: str) -> None:
    open_page(browser, address)
    run_page(browser)
    grounds = []
    for scheme in ("light", "dark"):
        set_scheme(browser, scheme)
        contrasts = browser.value(CONTRASTS)
        assert len(contrasts) > 40
        assert min(contrasts) >= 4.5
        grounds.append(browser.value("getComputedStyle(document.body).backgroundColor"))
        colours = browser.value(
            "new Set([...document.querySelectorAll('.answer .by-step')]"
            ".map((each) => getComputedStyle(each).backgroundColor)).size"
        )
        assert colours > 3
    assert len(set(grounds)) == 2


@in_a_page
def test_a_link_holds_the_prompt_and_the_options(browser: Browser, address: str) -> None:
    open_page(browser, address)
    prompt = "1 + 1?\n<b>ü</b> & #=% 🍎"
    changes = {"prompt": prompt, "tokens": "24", "temperature": "0.5", "strategy.1": "eb", "branches.1": "3"}
    changes |= {"attention.1": "full", "block_size.1": "16", "strategy.2": "threshold", "skip_threshold.2": "0.7"}
    browser.value(f"""{{
        byId('two').click();
        byId('key').value = 'a secret';
        const named = new Map(fields());
        for (const [name, value] of Object.entries({json.dumps(changes)})) named.get(name).value = value;
        for (const each of runs) each.updateOptions();
        byId('share').click();
    }}""")
    browser.until("byId('shared').textContent")
    assert browser.value("byId('shared').textContent") in (
        "Copied.",
        "The link is in the address bar. Copy it from there.",
    )
    link = browser.value("location.href")
    assert "secret" not in link
    values = browser.value("fields().map(([name, input]) => [name, input.value, input.checked])")
    suffix = link.removeprefix(f"{address}/")
    open_page(browser, address, suffix)
    assert browser.value("fields().map(([name, input]) => [name, input.value, input.checked])") == values
    assert {name: value for name, value, _ in values}.items() >= changes.items()
    assert browser.value("[runs[1].root.checkVisibility(), runs[0].option('branches').disabled]") == [False, False]
    assert browser.value("byId('problem').hidden")
    open_page(browser, address, "#prompt=a&strategy.1=nosuch&tokens=x&kind=chat&temperature=0.25")
    problem = browser.value("byId('problem').innerText")
    assert "strategy.1 nosuch" in problem
    assert "tokens x" in problem
    assert "chat message" in problem
    shown = browser.value(
        "[runs[0].strategy.value, byId('tokens').value, byId('temperature').value, byId('kind').value]"
    )
    assert shown == ["lopa", "128", "0.25", "text"]


@in_a_page
def test_a_page_opened_as_a_file_says_what_to_do(browser: Browser, folder: Path) -> None:
    open_page(browser, folder.as_uri(), "index.html")
    assert "opened as a file.\nWhat to do: open it through a web server" in browser.value("byId('problem').innerText")
    assert run_page(browser) == ["Not run: the model is not loaded."] * 2


@in_a_page
def test_a_run_works_again_once_the_network_is_back(browser: Browser, address: str) -> None:
    open_page(browser, address)
    assert all(" forwards: " in status for status in run_page(browser))
    is_page = browser.value("typeof openLopaSource === 'function'")
    set_network(browser, is_offline=True)
    statuses = run_page(browser)
    if not is_page:  # the opened model needs no network
        assert all("The server cannot be reached.\nWhat to do: " in status for status in statuses), statuses
    set_network(browser, is_offline=False)
    assert all(" forwards: " in status for status in run_page(browser))


class Failing(StaticFiles):
    """A host that fails for paths in `failing`, and redirects /index.html if `redirects`."""

    def __init__(self, *arguments: Any, failing: dict[str, str], redirects: bool = False, **options: Any) -> None:
        self._failing, self._redirects = failing, redirects
        super().__init__(*arguments, **options)

    def end_headers(self) -> None:
        if (policy := self._failing.get("policy")) is not None:
            self.send_header("Content-Security-Policy", policy)
        super().end_headers()

    def do_GET(self) -> None:  # noqa: N802
        path = self.path.partition("?")[0]
        how = next((how for name, how in self._failing.items() if path.endswith(name)), None)
        if self._redirects and path == "/index.html":
            self.send_response(308)
            self.send_header("Location", "/")
            self.end_headers()
        elif how == "missing":
            self.send_error(404)
        elif how is not None:
            self.send_response(200)
            self.send_header("Content-Type", "text/javascript")
            self.end_headers()
            self.wfile.write(how.encode())
        else:
            SimpleHTTPRequestHandler.do_GET(self)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("/source.js", "missing"),
        ("/source.js", "syntax error ("),
        ("/source.js", "throw new Error('broken')"),
        ("/source.js", "export const open = async () => { throw undefined; };"),
        ("/decoding/round.js", "missing"),
        ("/ort.wasm.min.mjs", "missing"),
        ("/ort-wasm-simd-threaded.wasm", "missing"),
        ("/start.js", "missing"),
        ("/model.onnx.data", "missing"),
        ("/service_worker.js", "addEventListener('install', (event) => event.waitUntil(new Promise(() => {})));"),
    ],
)
@in_a_page
def test_a_module_that_fails_ends_in_words_and_the_next_run_works(
    name: str, how: str, browser: Browser, folder: Path
) -> None:
    failing = {name: how}
    with hosted(folder, Failing, failing=failing) as address:
        open_page(browser, address)
        if "service_worker" not in name:
            statuses = run_page(browser)
            assert statuses == ["Not run: the model is not loaded."] * 2
            assert "What to do: " in browser.value("byId('problem').innerText")
            assert browser.value("document.querySelector('#loading').hidden")
            assert browser.value("byId('prompt').value") == PROMPT
        failing.clear()
        if name == "/start.js":  # only the next visit loads it
            assert "missing (start.js)" in browser.value("byId('problem').innerText")
            open_page(browser, address)
            browser.value(f"void (byId('prompt').value = {json.dumps(PROMPT)})")
        browser.value("void byId('form').requestSubmit()")
        settled(browser, "runs.every((each) => / forwards: /.test(each.part('status').textContent))")
        assert browser.value("byId('prompt').value") == PROMPT or "service_worker" in name


@in_a_page
def test_a_host_that_redirects_index_html_works(browser: Browser, folder: Path) -> None:
    """Also once the service worker controls the page, which then fetches the redirect."""
    with hosted(folder, Failing, failing={}, redirects=True) as address:
        for _ in range(2):
            open_page(browser, address, "index.html")
            settled(browser, "crossOriginIsolated && navigator.serviceWorker.controller !== null")
            assert browser.value("location.pathname") == "/"
        assert all(" forwards: " in status for status in run_page(browser))


@in_a_page
def test_a_strict_policy_of_the_host_works(browser: Browser, folder: Path) -> None:
    """The page's own policy, as a header. Without 'wasm-unsafe-eval' the page says what failed."""
    text = (folder / "index.html").read_text(encoding="utf-8")
    policy = text.partition('http-equiv="Content-Security-Policy" content="')[2].partition('"')[0]
    assert "'unsafe-inline'" not in policy
    assert "'unsafe-eval'" not in policy
    failing = {"policy": policy}
    with hosted(folder, Failing, failing=failing) as address:
        open_page(browser, address)
        assert all(" forwards: " in status for status in run_page(browser))
        assert browser.complaints == []
    failing["policy"] = policy.replace(" 'wasm-unsafe-eval'", "")
    with hosted(folder, Failing, failing=failing) as address:
        open_page(browser, address)
        run_page(browser)
        assert "WebAssembly is forbidden" in browser.value("byId('problem').innerText")


@in_a_page
def test_a_download_shows_its_progress(browser: Browser, folder: Path) -> None:
    with hosted(folder) as address:
        set_network(browser, is_offline=False)
        browser.open("about:blank")
        browser.call(
            "Page.addScriptToEvaluateOnNewDocument",
            source="""addEventListener('DOMContentLoaded', () => {
                globalThis.loads = [];
                const node = document.querySelector('#loading [role=status]');
                new MutationObserver(() => loads.push([node.textContent, document.querySelector('progress').value]))
                    .observe(node, { childList: true });
            });""",
        )
        open_page(browser, address)
        loads = browser.value("loads")
    parts = [part for text, part in loads if " MB." in text and "of" in text and text.startswith("Loading the model: ")]
    assert len(parts) > 1
    assert parts == sorted(parts)


@in_a_page
def test_filled_holes_keep_their_colours_beside_given_text(browser: Browser, addresses: dict[str, str]) -> None:
    """The first and the last token of a hole repeat given text: the space before, and the word after it."""
    open_page(browser, addresses["serve"])
    browser.value(
        "choose('holes'); for (const each of runs) each.option('attention').value = 'full'; byId('two').click()"
    )
    prompt = (
        "Question: There are 9 baskets, and each holds 6 candies.\nAnswer: 9 * 6 = <hole:4> candies.\n#### <hole:2>"
    )
    browser.value("runs[0].option('branches').value = 1")
    (status, _) = run_page(browser, prompt)
    answer = browser.value("runs[0].part('answer').textContent")
    given = re.split("<hole:.>", prompt)
    assert re.fullmatch("(.+)".join(map(re.escape, given[:-1])) + ".*", answer, re.DOTALL), answer
    tokens = browser.value("runs[0].final")
    assert [each["text"] for each in tokens if each.get("how") == "given text"] == given[:-1]
    coloured = [each for each in tokens if each.get("how") is None]
    assert all(each["step"] for each in coloured)
    assert status == f"{len(coloured)} tokens in {browser.value('runs[0].drafts.at(-1).step')} forwards: holes filled"
    for place in range(1, browser.value("runs[0].drafts.length")):
        browser.value(f"runs[0].slider.value = {place}; runs[0].display()")
        assert browser.value("runs[0].part('answer').textContent").startswith(given[0].strip())
        assert "=  " not in browser.value("runs[0].part('answer').textContent")


@in_a_page
def test_a_hidden_run_with_an_invalid_field_does_not_block(browser: Browser, address: str) -> None:
    open_page(browser, address)
    browser.value("void (runs[1].option('branches').value = 0, runs[1].option('block_size').value = '')")
    browser.value("byId('two').click()")
    assert " forwards: " in run_page(browser)[0]
    browser.value("byId('two').click()")
    assert not browser.value("byId('form').checkValidity()")


@pytest.mark.parametrize(
    ("received", "field", "line"),
    [
        ("the prompt has 12001 tokens", "prompt", "Prompt: the prompt has 12001 tokens."),
        ("max_tokens is 100000", "max_tokens", "Max tokens is 100000."),
        ("branches 0", "lopa.branches", "Branches: 0."),
        ("3f9a2 is the digest", None, "3f9a2 is the digest."),
        ("a9c3 is the digest", None, "a9c3 is the digest."),
    ],
)
@in_a_page
def test_an_error_names_a_field_once(
    received: str, field: str | None, line: str, browser: Browser, addresses: dict[str, str]
) -> None:
    open_page(browser, addresses["serve"])
    error = json.dumps({"received": received, "expected": "a number", "remedy": "lower max_new_tokens"})
    shown = browser.value(f"errorOfField({error}, {json.dumps(field)}).message").splitlines()
    assert shown == [line, "Expected: A number.", "What to do: Lower Max tokens."]


@in_a_page
def test_no_progress_counts_after_a_failure(browser: Browser, addresses: dict[str, str]) -> None:
    open_page(browser, addresses["serve"])
    browser.value("""{
        opening = null;
        globalThis.openLopaSource = async (report) => {
            globalThis.late = report;
            throw new Error('broken');
        };
    }""")
    run_page(browser)
    browser.value("late('Loading the model.', 0.5)")
    assert browser.value("byId('loading').hidden")
    assert "broken" in browser.value("byId('problem').innerText")


@in_a_page
def test_a_model_with_canvases_decodes_by_its_own_options(browser: Browser, canvas_bundle: Path) -> None:
    with serving(canvas_bundle) as server:
        open_page(browser, server.url, "#prompt=Hi&temperature=-1&block_size.1=0&kind=chat")
        assert all("forwards: " in status for status in run_page(browser, "Count from 3 to 9."))
    assert re.match(r"[\d, ]+", browser.value("runs[0].part('answer').innerText"))
    assert browser.value("runs[0].body('')") == {
        **{"model": "", "messages": [{"role": "user", "content": "Count from 3 to 9."}], "max_tokens": 128},
        **{"stream": True, "stream_options": {"include_drafts": True}, "lopa": {}},
    }
    shown = "[...document.querySelectorAll('[name], #kind option')].filter((each) => each.checkVisibility())"
    assert browser.value(f"{shown}.map((each) => each.name ?? each.value)") == []
