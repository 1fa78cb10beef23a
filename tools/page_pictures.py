"""Take the pictures of the page in docs/how-to/browser.md, in light and in dark colours, by Chromium.

Usage: python -m tools.page_pictures PAGE FOLDER

PAGE is a folder that `lopa-export page` wrote for the embedded toy model. Writes page-light.png and page-dark.png.
Chromium is the one of `make test-web`.
"""

import base64
import json
import sys
import tempfile
from pathlib import Path

from tests.serve.chromium import Browser, chromium
from tests.web.static_host import hosted

from tools.pictures import PROMPT

WIDTH = 1000
"""Width of the window in pixels."""
PLACE = 4
"""Step that the second run shows, with masked positions."""


def run(browser: Browser, address: str) -> None:
    """Decode the prompt, point at a token of the first run, and move the slider of the second one."""
    browser.call("Page.navigate", url=address)
    browser.until("globalThis.crossOriginIsolated && document.getElementById('model')?.textContent")
    browser.value(f"void (byId('prompt').value = {json.dumps(PROMPT)}, byId('form').requestSubmit())")
    browser.until("runs.every(({ final }) => final)")
    browser.value("runs[0].explain(runs[0].final.at(-1))")
    browser.value(f"runs[1].slider.value = {PLACE}; runs[1].display(); void byId('prompt').blur()")


def picture(browser: Browser, scheme: str) -> bytes:
    """Return the page down to the end of the runs as PNG, in the colours of `scheme`."""
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    end = browser.value("Math.ceil(byId('runs').getBoundingClientRect().bottom + scrollY) + 12")
    clip = {"x": 0, "y": 0, "width": WIDTH, "height": end, "scale": 1}
    taken = browser.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
    return base64.b64decode(taken["data"])


def main(arguments: list[str]) -> None:
    """Write both pictures."""
    page, folder = map(Path, arguments)
    with tempfile.TemporaryDirectory() as profile, hosted(page) as address, chromium(Path(profile)) as browser:
        size = {"width": WIDTH, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.call("Emulation.setDeviceMetricsOverride", **size)
        browser.call("Emulation.setScrollbarsHidden", hidden=True)
        run(browser, address)
        for scheme in ("light", "dark"):
            (folder / f"page-{scheme}.png").write_bytes(picture(browser, scheme))


if __name__ == "__main__":
    main(sys.argv[1:])
