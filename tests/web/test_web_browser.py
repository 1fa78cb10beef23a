"""lopa-web in headless Chromium: WebAssembly, and WebGPU on Chromium's software adapter."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conformance.recorded import compare, read_traces, trace_files
from tests.serve.chromium import PROGRAM, Browser, chromium
from tests.web.installed import WEB, no_web
from tests.web.replayed import request_of, steps_of
from tests.web.static_host import StaticFiles, hosted

from lopa.runtime.decoder import Decoder

pytestmark = [
    pytest.mark.web,
    pytest.mark.browser,
    no_web,
    pytest.mark.skipif(PROGRAM is None, reason="needs Chromium: make test-web unpacks one"),
]
WAIT = 300.0
"""Seconds after which a task counts as hung. WebGPU on a processor takes a minute."""
_WEBGPU = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader")
PROMPT = "Tom has 3 apples. He buys 4 more."
OPTIONS: dict[str, Any] = {"max_new_tokens": 32, "stop_at_eos": False, "branches": 2, "temperature": 1.0, "seed": 4}


class _Files(StaticFiles):
    """The files of web/, and those of bundles below /NAME."""

    def __init__(self, *arguments: Any, bundles: Mapping[str, Path], **options: Any) -> None:
        self._bundles = bundles
        super().__init__(*arguments, **options)

    def translate_path(self, path: str) -> str:
        _, folder, *rest = path.split("/")
        bundle = self._bundles.get(folder)
        return super().translate_path(path) if bundle is None else str(bundle.joinpath(*rest))


@pytest.fixture(scope="module")
def address(tiny_bundle: Path, export_tiny: Callable[..., Path]) -> Iterator[str]:
    """Serve the files and yield their address."""
    portable = export_tiny(dialects=("standard", "portable"), with_logits=False)
    bundles = {"bundle": tiny_bundle, "portable": portable}
    with hosted(WEB, _Files, bundles=bundles) as found:
        yield found


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Yield a browser with WebGPU on a software adapter."""
    with chromium(tmp_path_factory.mktemp("chromium"), *_WEBGPU) as started:
        yield started


def outcome(browser: Browser, address: str, task: str, **argument: Any) -> Any:
    """Return the value of a task of web/test/page.html."""
    browser.open(f"{address}/test/page.html")
    browser.until("typeof start === 'function'")
    browser.value(f"void start({json.dumps(task)}, {json.dumps(argument)})")
    end = time.monotonic() + WAIT
    while (found := browser.value("outcome")) is None:
        assert time.monotonic() < end, f"{task} is not done"
        time.sleep(0.1)
    assert "error" not in found, found["error"]
    return found["value"]


@pytest.mark.parametrize(
    ("device", "bundle", "names", "limit"),
    [
        ("wasm", "bundle", ("d2f_bs16_block", "lopa_bf3_bs16_full", "x_lopa_bf4_new120_bs32"), 2),
        ("webgpu", "bundle", ("d2f_bs16_block",), 1),
        ("webgpu", "portable", ("d2f_bs16_block", "lopa_bf2_bs16_full"), 1),
    ],
)
def test_published_traces_are_reproduced(
    device: str, bundle: str, names: tuple[str, ...], limit: int, browser: Browser, address: str
) -> None:
    """WebGPU has the prefix cache in device memory if the graph is portable."""
    for path in trace_files():
        if path.name.split(".")[0] not in names:
            continue
        config, traces = read_traces(path)
        requests = [request_of(trace["prompt_ids"], config, eos=0) for trace in traces[:limit]]
        decodes = outcome(browser, address, "replay", device=device, bundle=bundle, requests=requests)
        assert len(decodes) == limit
        for trace, decode in zip(traces, decodes, strict=False):
            assert compare(trace, steps_of(decode), np.array(decode["generated"])).mismatch is None


def test_a_page_gets_the_answer_of_python(browser: Browser, address: str, tiny_bundle: Path) -> None:
    found = outcome(browser, address, "stream", device="wasm", prompt=PROMPT, options=OPTIONS)
    with Decoder.open(tiny_bundle, threads=1) as decoder:
        expected = decoder.generate(PROMPT, **OPTIONS)
    assert found["result"]["token_ids"] == list(expected.token_ids)
    assert found["result"]["text"] == expected.text == "".join(event["text"] for event in found["events"])
    assert not [each for each in browser.complaints if "error" in each.lower()]


def test_a_missing_bundle_is_an_error_with_a_remedy(browser: Browser, address: str) -> None:
    found = outcome(browser, address, "fail", device="wasm", location=f"{address}/nothing")
    assert found["name"] == "BadInputError"
    assert "manifest.json is missing (HTTP status 404)" in found["received"]
    assert found["remedy"]


def test_a_browser_without_webgpu_is_an_error_with_a_remedy(address: str, tmp_path: Path) -> None:
    with chromium(tmp_path) as browser:
        found = outcome(browser, address, "fail", device="webgpu", location="/bundle")
    assert found["name"] == "MissingBackendError"
    assert "WebGPU" in found["received"]
    assert 'device "wasm"' in found["remedy"]
