"""lopa-web in pages made by esbuild, webpack and vite: the page and the worker of docs/how-to/browser.md."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.serve.chromium import PROGRAM, Browser, chromium
from tests.web.installed import WEB, no_web, run_node
from tests.web.static_host import FilesAndBundles, IsolatedFiles, hosted

from lopa.runtime.decoder import Decoder

ROOT = WEB.parent
BUNDLERS = ROOT / ".bundlers"
NAMES = ("esbuild", "webpack", "vite")
MAX_BYTES = 88_000
"""Minified bytes of lopa-web, which has no dependencies. ONNX Runtime is not counted."""

pytestmark = [
    pytest.mark.web,
    no_web,
    pytest.mark.skipif(not (BUNDLERS / "ready").is_file(), reason="needs bundlers: make test-web installs them"),
]


def scripts_of_docs() -> dict[str, str]:
    """Return the two files in the section of the page about bundlers."""
    page = (ROOT / "docs" / "how-to" / "browser.md").read_text(encoding="utf-8")
    section = page[page.index("\n## Use a bundler") :]
    code = re.findall(r"```js\n(.*?)```", section, re.DOTALL)[:2]
    return dict(zip(("page.js", "worker.js"), code, strict=True))


def app_in(folder: Path, scripts: dict[str, str]) -> Path:
    """Write an application whose node_modules has lopa-web and ONNX Runtime."""
    modules = folder / "node_modules"
    modules.mkdir(parents=True)
    (modules / "lopa-web").symlink_to(WEB)
    (modules / "onnxruntime-web").symlink_to(WEB / "node_modules" / "onnxruntime-web")
    (folder / "package.json").write_text('{ "type": "module" }')
    for name, text in scripts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def bundled(name: str, folder: Path) -> dict[str, Any]:
    """Bundle an application, and return the bundler's warnings and the sizes of the files."""
    found: dict[str, Any] = json.loads(run_node("bundle.mjs", BUNDLERS, name, folder).stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("chromium")) as started:
        yield started


OPTIONS: dict[str, Any] = {"max_new_tokens": 64, "stop_at_eos": False, "strategy": "sequential"}
"""Options of 64 steps."""
RECORDER = """
globalThis.worker = worker;
globalThis.found = { types: [] };
worker.addEventListener("message", ({ data }) => {
  found.types.push(data.type);
  if (data.type === "draft") found.draft = data.text;
  if (data.type === "draft" && found.isLate) document.body.click();
  if (data.type === "done") found.ids = data.result.token_ids;
  if (data.type === "done") found.end = data.result.stop_reason;
  if (data.type === "error") found.end = data.message;
});
"""
"""Code behind that of the page. It clicks at the first draft if `found.isLate`."""


@pytest.mark.skipif(PROGRAM is None, reason="needs Chromium: make test-web unpacks one")
@pytest.mark.browser
@pytest.mark.parametrize("name", NAMES)
def test_the_worker_of_the_docs_decodes_and_stops(
    name: str, browser: Browser, tiny_bundle: Path, tmp_path: Path
) -> None:
    """It runs with the threads that the page has: one without cross-origin isolation, several with it."""
    scripts = scripts_of_docs()
    prompt = re.search(r'prompt: "(.+)"', scripts["page.js"])
    assert prompt is not None
    assert scripts["worker.js"].count("max_new_tokens: 64,") == 1
    worker = scripts["worker.js"].replace("max_new_tokens: 64,", f"...{json.dumps(OPTIONS)},")
    app = app_in(tmp_path, {"page.js": scripts["page.js"] + RECORDER, "worker.js": worker})
    assert bundled(name, app)["warnings"] == []
    with Decoder.open(tiny_bundle, threads=1) as decoder:
        expected = decoder.generate(prompt[1], **OPTIONS)
    for files in (FilesAndBundles, IsolatedFiles):
        with hosted(app / "dist", files, bundles={"bundle": tiny_bundle}) as address:
            browser.open(f"{address}/index.html")
            assert browser.until("found.end") == "length"
            assert browser.value("found.ids") == list(expected.token_ids)
            assert browser.value("document.body.textContent") == expected.text
            assert browser.value("crossOriginIsolated") == (files is IsolatedFiles)
            types: list[str] = browser.value("found.types")
            assert types.index("progress") < types.index("draft")
            assert types.count("draft") == expected.steps
            browser.value(
                f"void (found.isLate = true, found.end = null, worker.postMessage({{ prompt: {prompt[0][8:]} }}))"
            )
            assert browser.until("found.end") == "cancelled"
            assert browser.value("document.body.textContent === found.draft && found.draft !== ''")
            assert browser.value("found.types").count("draft") < 2 * expected.steps
            assert browser.complaints == []
            browser.open(f"{address}/index.html")
            browser.value("document.body.click()")
            assert browser.until("found.types.includes('stopped')")
            assert browser.value("document.body.textContent") == "Stopped"


@pytest.mark.parametrize("name", NAMES)
def test_errors_alone_are_small(name: str, tmp_path: Path) -> None:
    """Bundlers leave out everything that a page does not import."""
    scripts = {"page.js": 'import { BadInputError } from "lopa-web";\nconsole.log(new BadInputError("a", {}));\n'}
    found = bundled(name, app_in(tmp_path, {**scripts, "worker.js": ""}))
    assert found["warnings"] == []
    code = {path: size for path, size in found["sizes"].items() if path.endswith(".js")}
    assert 200 < sum(code.values()) < 2000, code


@pytest.mark.parametrize(("condition", "has_node"), [("browser", False), ("node", True)])
def test_only_the_file_for_node_imports_of_node(condition: str, has_node: bool, tmp_path: Path) -> None:
    package = json.loads((WEB / "package.json").read_text(encoding="utf-8"))
    entry = package["exports"]["."].get(condition, package["exports"]["."]["default"])
    text = bundled_text(WEB / entry, tmp_path, "--external:onnxruntime-*")
    assert ("node:" in text) == has_node
    assert ("import(" in text) == has_node


def test_the_package_is_small(tmp_path: Path) -> None:
    package = json.loads((WEB / "package.json").read_text(encoding="utf-8"))
    assert "dependencies" not in package
    assert 10_000 < len(bundled_text(WEB / "dist" / "browser.js", tmp_path).encode()) <= MAX_BYTES


def bundled_text(entry: Path, folder: Path, *options: str) -> str:
    """Return the minified bundle of a file by esbuild, with imports of Node left in it."""
    output = folder / "out.js"
    program = BUNDLERS / "node_modules" / "esbuild" / "bin" / "esbuild"
    flags = ("--bundle", "--minify", "--format=esm", "--external:node:*", "--log-level=error", f"--outfile={output}")
    run_node(program, entry, *flags, *options)
    return output.read_text(encoding="utf-8")
