"""A host of static files that sends no special header, and tasks of web/test/page.html in Chromium."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.serve.chromium import Browser


class StaticFiles(SimpleHTTPRequestHandler):
    """The files of a folder."""

    def log_message(self, *_: object) -> None:
        """Print nothing."""


StaticFiles.extensions_map = {**StaticFiles.extensions_map, ".mjs": "text/javascript", ".wasm": "application/wasm"}


class FilesAndBundles(StaticFiles):
    """The files of a folder, and those of `bundles` below /NAME."""

    def __init__(self, *arguments: Any, bundles: Mapping[str, Path], **options: Any) -> None:
        self._bundles = bundles
        super().__init__(*arguments, **options)

    def translate_path(self, path: str) -> str:
        _, folder, *rest = path.split("/")
        bundle = self._bundles.get(folder)
        return super().translate_path(path) if bundle is None else str(bundle.joinpath(*rest))


class IsolatedFiles(FilesAndBundles):
    """The same with the headers that threads of WebAssembly need."""

    def end_headers(self) -> None:
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()


@contextmanager
def hosted(folder: Path, files: Callable[..., StaticFiles] = StaticFiles, **options: Any) -> Iterator[str]:
    """Serve `folder` by `files` with more `options`, and yield the address."""
    handler = partial(files, directory=str(folder), **options)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


SOFTWARE_WEBGPU = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader")
"""Chromium's options for WebGPU on a software adapter."""
WAIT = 300.0
"""Seconds after which a task counts as hung. WebGPU on a processor takes a minute."""


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
