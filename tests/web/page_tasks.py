"""Tasks of web/test/page.html in Chromium."""

import json
import time
from typing import Any

from tests.serve.chromium import Browser

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
