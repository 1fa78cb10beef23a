"""The page that `lopa-export page` writes, in Chromium, from a host of static files."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.chat_bundles import HERMES, with_chat_template
from tests.cli.command import PROMPT, lopa_export
from tests.serve.chromium import Browser, chromium, in_chromium
from tests.web.installed import WEB, no_web
from tests.web.static_host import hosted

from lopa.runtime.decoder import Decoder

STRATEGIES = ["lopa", "d2f", "threshold", "vanilla", "sequential", "eb"]
OPTIONS: tuple[dict[str, Any], ...] = ({"strategy": "lopa", "branches": 4}, {"strategy": "d2f"})
"""Default options of the two runs."""
ENDED = (
    "[...document.querySelectorAll('.status')].every((each) => / forwards: /.test(each.textContent)"
    " || each.className.includes('wrong'))"
)
OPENED = "document.getElementById('model')?.textContent || document.getElementById('problem')?.hidden === false"


def in_a_page(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that needs the browser and the npm packages."""
    marked: Callable[..., None] = pytest.mark.web(no_web(in_chromium(test)))
    return marked


@pytest.fixture(scope="module")
def folder(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a page of the toy with a chat template."""
    made = tmp_path_factory.mktemp("page")
    bundle = with_chat_template(tiny_bundle, made / "toy", HERMES)
    done = lopa_export("page", bundle, "-o", made / "page", "--packages", WEB)
    assert done.returncode == 0, done.stderr
    return made / "page"


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with hosted(folder) as found:
        yield found


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with chromium(tmp_path) as started:
        yield started


def texts(browser: Browser, selector: str) -> list[str]:
    found: list[str] = browser.value(f"[...document.querySelectorAll({selector!r})].map((each) => each.textContent)")
    return found


def run_page(browser: Browser, address: str, kind: str) -> None:
    """Open the page, send the prompt, and wait for the end of both runs."""
    browser.open(f"{address}/index.html")
    browser.until(OPENED)
    browser.until("crossOriginIsolated")
    browser.value(f"void (document.getElementById('kind').value = {kind!r})")
    browser.value(f"void (document.getElementById('prompt').value = {json.dumps(PROMPT)})")
    browser.value("void document.getElementById('form').requestSubmit()")
    browser.until(ENDED)


@pytest.mark.parametrize("kind", ["text", "chat"])
@in_a_page
def test_runs_are_those_of_python(browser: Browser, address: str, folder: Path, kind: str) -> None:
    run_page(browser, address, kind)
    with Decoder.open(folder / "bundle", threads=1) as decoder:
        prompt: Any = PROMPT if kind == "text" else decoder.tokenizer.chat([{"role": "user", "content": PROMPT}])
        expected = [decoder.generate(prompt, max_new_tokens=128, **options) for options in OPTIONS]
    assert texts(browser, ".answer") == [each.text for each in expected]
    assert texts(browser, ".forwards") == [str(each.steps) for each in expected]
    assert texts(browser, "#model") == [": toy"]
    assert [text.partition(":")[0] for text in texts(browser, "[name=strategy] option")][:6] == STRATEGIES
    assert browser.value("runs.map((each) => each.drafts.length)") == [each.steps for each in expected]
    assert browser.complaints == []
    assert all(each.startswith((address, "data:", "blob:")) for each in browser.requested), browser.requested


def too_large(bundle: Path) -> None:
    """List the weights with more bytes than any browser can reserve."""
    manifest = json.loads((bundle / "manifest.json").read_text())
    next(file for file in manifest["files"] if file["path"] == "model.onnx.data")["size"] = 2**47
    (bundle / "manifest.json").write_text(json.dumps(manifest))


def no_change(_bundle: Path) -> None:
    """Change nothing."""


@pytest.mark.parametrize(
    ("change", "query", "received", "remedy"),
    [
        (too_large, "", "(?i)no memory for the 140737488355328 bytes of .*data", "quantized bundle"),
        (no_change, "?device=webgpu", "WebGPU", "without .device=webgpu"),
        (no_change, "?device=gpu", 'device = "gpu"', "without .device=gpu"),
    ],
    ids=("too-large", "no-webgpu", "unknown-device"),
)
@in_a_page
def test_a_page_that_cannot_start_says_what_to_do(
    change: Callable[[Path], None],
    query: str,
    received: str,
    remedy: str,
    browser: Browser,
    folder: Path,
    tmp_path: Path,
) -> None:
    """The page shows the error in three lines."""
    changed = Path(shutil.copytree(folder, tmp_path / "changed"))
    change(changed / "bundle")
    with hosted(changed) as address:
        browser.open(f"{address}/index.html{query}")
        browser.until("document.getElementById('problem')?.hidden === false")
        lines = texts(browser, "#problem span")
    assert re.search(received, lines[0])
    assert lines[1].startswith("Expected: ")
    assert lines[2].startswith("What to do: ")
    assert re.search(remedy, lines[2])


def test_missing_packages_are_an_error(tiny_bundle: Path, tmp_path: Path) -> None:
    done = lopa_export("page", tiny_bundle, "-o", tmp_path / "page", "--packages", tmp_path)
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert "index.js is missing" in done.stderr
    assert "npm ci --prefix web" in done.stderr
    assert "--packages CHECKOUT/web" in done.stderr


@no_web
@pytest.mark.web
def test_an_existing_folder_is_kept(folder: Path) -> None:
    done = lopa_export("page", folder / "bundle", "-o", folder, "--packages", WEB)
    assert done.returncode == 2
    assert "exists" in done.stderr
    kept = lopa_export("page", folder / "bundle", "-o", folder.parent / "toy", "--overwrite", "--packages", WEB)
    assert kept.returncode == 2
    assert "not a page" in kept.stderr
