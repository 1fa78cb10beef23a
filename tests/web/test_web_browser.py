"""lopa-web in headless Chromium: WebAssembly, and WebGPU on Chromium's software adapter."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conformance.recorded import compare, read_traces, trace_files
from tests.serve.chromium import PROGRAM, Browser, chromium
from tests.web.installed import WEB, no_web
from tests.web.replayed import request_of, steps_of
from tests.web.static_host import SOFTWARE_WEBGPU, FilesAndBundles, IsolatedFiles, hosted, outcome

from lopa.export.bundle_plan import GRAPH_NAMES
from lopa.runtime.decoder import Decoder

pytestmark = [
    pytest.mark.web,
    pytest.mark.browser,
    no_web,
    pytest.mark.skipif(PROGRAM is None, reason="needs Chromium: make test-web unpacks one"),
]
PROMPT = "Tom has 3 apples. He buys 4 more."
OPTIONS: dict[str, Any] = {"max_new_tokens": 32, "stop_at_eos": False, "branches": 2, "temperature": 1.0, "seed": 4}

QUANTIZED = ("int4", "int8")


@pytest.fixture(scope="module")
def address(tiny_bundle: Path, export_tiny: Callable[..., Path]) -> Iterator[str]:
    """Serve the files and yield their address."""
    portable = export_tiny(dialects=("standard", "portable"), with_logits=False)
    bundles = {"bundle": tiny_bundle, "portable": portable}
    for kind in QUANTIZED:
        bundles[kind] = export_tiny(dialects=("portable",), with_logits=False, quantize=kind)
    with hosted(WEB, FilesAndBundles, bundles=bundles) as found:
        yield found


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Yield a browser with WebGPU on a software adapter."""
    with chromium(tmp_path_factory.mktemp("chromium"), *SOFTWARE_WEBGPU) as started:
        yield started


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


@pytest.mark.parametrize(
    ("files", "threads", "proxy"),
    [
        (FilesAndBundles, 1, False),
        (FilesAndBundles, 1, True),
        (IsolatedFiles, None, False),
        (IsolatedFiles, 2, False),
        (IsolatedFiles, 2, True),
    ],
)
def test_a_decode_is_watched_and_stopped(
    files: type[FilesAndBundles], threads: int | None, proxy: bool, browser: Browser, tiny_bundle: Path
) -> None:
    """Frames are painted and timers run between steps, and a signal has an effect after at most one more step."""
    options: dict[str, Any] = {"max_new_tokens": 128, "stop_at_eos": False, "strategy": "vanilla", "block_steps": 16}
    with hosted(WEB, files, bundles={"bundle": tiny_bundle}) as address:
        found = outcome(browser, address, "watch", threads=threads, proxy=proxy, prompt=PROMPT, options=options)
    assert found["isIsolated"] == (files is IsolatedFiles)
    with Decoder.open(tiny_bundle, threads=1) as decoder:
        expected = decoder.generate(PROMPT, **options)
    assert (found["token_ids"], found["steps"]) == (list(expected.token_ids), expected.steps)
    assert found["frames"] > 0
    assert found["timers"] > 0
    assert found["stop_reason"] == "cancelled"
    assert found["done"] < found["steps"]
    assert found["stepsAfterAbort"] <= 1
    loaded = [each["loaded"] for each in found["progress"]]
    assert len(loaded) > 3
    assert loaded == sorted(loaded)
    assert {each["total"] for each in found["progress"]} == {loaded[-1]}


@pytest.mark.parametrize("kind", QUANTIZED)
def test_webgpu_multiplies_by_quantized_matrices(
    kind: str, browser: Browser, address: str, export_tiny: Callable[..., Path]
) -> None:
    """The page loads the twin, whose matrices stay 4 or 8 bits on the device, and gets the answer of Python."""
    found = outcome(browser, address, "stream", device="webgpu", bundle=kind, prompt=PROMPT, options=OPTIONS)
    with Decoder.open(export_tiny(dialects=("portable",), with_logits=False, quantize=kind), ["numpy"]) as decoder:
        expected = decoder.generate(PROMPT, **OPTIONS)
    assert found["result"]["token_ids"] == list(expected.token_ids)
    names = [each.rpartition("/")[2] for each in browser.requested if each.endswith(".onnx")]
    assert names == [f"{GRAPH_NAMES['portable'].removesuffix('.onnx')}.webgpu.onnx"]
