"""docs/how-to/browser.md in an application's folder: the packed package, its page in Chromium, its program in Node."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
import tarfile
import time
from pathlib import Path

import pytest
from tests.pages.page_blocks import Block, blocks_of
from tests.serve.chromium import WAIT, chromium, in_chromium
from tests.web.installed import NODE, WEB, no_web
from tests.web.static_host import StaticFiles, hosted

from lopa.runtime.decoder import Decoder

PAGE = (WEB.parent / "docs" / "how-to" / "browser.md").read_text(encoding="utf-8")
WASM = " 'wasm-unsafe-eval'"
pytestmark = [pytest.mark.web, no_web]


def block_with(language: str, text: str) -> Block:
    """Return the page's block of code in `language` that contains `text`."""
    return next(block for block in blocks_of(PAGE) if block.language == language and text in block.code)


HTML = block_with("html", "importmap").code
(POLICY,) = re.findall(r"^default-src .*$", PAGE, re.MULTILINE)


class WithPolicy(StaticFiles):
    """Files of a folder, with a Content-Security-Policy."""

    policy = ""

    def end_headers(self) -> None:
        self.send_header("Content-Security-Policy", self.policy)
        super().end_headers()


@pytest.fixture(scope="module")
def application(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder outside the checkout, made as the page says, with the page and a bundle.

    Only packages that the package names, and ONNX Runtime, are there.
    """
    folder = tmp_path_factory.mktemp("application")
    pack = ["npm", "pack", str(WEB), "--ignore-scripts", "--silent", "--pack-destination", str(folder)]
    archive = folder / subprocess.run(pack, capture_output=True, text=True, check=True).stdout.strip()
    assert f"CHECKOUT/{archive.name} " in PAGE
    subprocess.run(block_with("sh", "npm init").code, shell=True, cwd=folder, check=True)
    packages = folder / "node_modules"
    with tarfile.open(archive) as packed:
        packed.extractall(packages, filter="data")
    (packages / "package").rename(packages / "lopa-web")
    needed = json.loads((packages / "lopa-web" / "package.json").read_text(encoding="utf-8")).get("dependencies", ())
    for name in (*needed, "onnxruntime-web", "onnxruntime-node", "onnxruntime-common"):
        (packages / name).parent.mkdir(exist_ok=True)
        (packages / name).symlink_to(WEB / "node_modules" / name)
    (folder / "index.html").write_text(
        f"<!doctype html>\n<link rel='icon' href='data:,'>\n<body>\n{HTML}", encoding="utf-8"
    )
    shutil.copytree(tiny_bundle, folder / "bundle")
    (folder / "out").mkdir()
    (folder / "out" / "bundle").symlink_to(tiny_bundle)
    return folder


@pytest.fixture(scope="module")
def expected(tiny_bundle: Path) -> str:
    """Return Python's answer to the page's prompt."""
    prompt = HTML.partition('prompt = "')[2].partition('"')[0]
    with Decoder.open(tiny_bundle, threads=1) as decoder:
        return decoder.generate(prompt).text


def policy_with_hashes(policy: str) -> str:
    """Return the policy with the hashes of the page's inline scripts."""
    scripts = re.findall(r"<script[^>]*>(.*?)</script>", HTML, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in scripts]
    return policy.replace("script-src", "script-src " + " ".join(f"'sha256-{each}'" for each in hashes))


@pytest.mark.parametrize("policy", ["", POLICY.replace("default-src 'none'", "default-src 'none'; img-src data:")])
@in_chromium
def test_the_page_decodes(application: Path, expected: str, policy: str, tmp_path: Path) -> None:
    handler = type("Files", (WithPolicy,), {"policy": policy_with_hashes(policy)})
    with chromium(tmp_path) as browser, hosted(application, handler) as address:
        browser.open(f"{address}/index.html")
        browser.until(f"document.body.textContent.endsWith({json.dumps(expected)})")
        assert browser.complaints == []


@in_chromium
def test_a_click_stops_the_page(application: Path, expected: str, tmp_path: Path) -> None:
    late = HTML.replace(
        'event.type === "text")',
        'event.type === "done") globalThis.end = event.result.stop_reason;\n    if (event.type === "text")',
    )
    clicked = late.replace("  for await", "  document.body.click();\n  for await")
    assert clicked.count("click()") == 1
    (application / "stopped.html").write_text(f"<!doctype html>\n<link rel='icon' href='data:,'>\n<body>\n{clicked}")
    with chromium(tmp_path) as browser, hosted(application, StaticFiles) as address:
        browser.open(f"{address}/stopped.html")
        assert browser.until("globalThis.end") == "cancelled"
        assert not browser.value("document.body.textContent").endswith(expected)


@in_chromium
def test_webassembly_needs_its_source_in_the_policy(application: Path, tmp_path: Path) -> None:
    assert WASM in POLICY
    handler = type("Files", (WithPolicy,), {"policy": policy_with_hashes(POLICY.replace(WASM, ""))})
    with chromium(tmp_path) as browser, hosted(application, handler) as address:
        browser.open(f"{address}/index.html")
        end = time.monotonic() + WAIT
        while not any("WebAssembly" in each for each in browser.complaints):
            assert time.monotonic() < end, browser.complaints
            browser.value("0")  # reads what the page reported so far


def test_the_program_decodes(application: Path) -> None:
    (application / "program.js").write_text(block_with("js", "Decoder.open").code, encoding="utf-8")
    assert NODE is not None
    done = subprocess.run(
        [NODE, "--preserve-symlinks", "program.js"],
        cwd=application,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"\d\.\d+\n$", done.stdout)
