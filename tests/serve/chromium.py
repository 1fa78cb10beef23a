"""Real headless Chromium, driven over its debugging pipe without a driver program or library."""

import fcntl
import itertools
import json
import os
import selectors
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

_UNPACKED = Path(__file__).resolve().parents[2] / ".chromium" / "chromium"
_NAMES = ("chromium", "chromium-browser", "google-chrome", str(_UNPACKED))
PROGRAM = next(filter(None, map(shutil.which, _NAMES)), None)
"""Path of Chromium, of the system or unpacked by `make test-web`, or None."""
WAIT = 60.0
"""Seconds after which an expected event counts as lost."""
_OPTIONS = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-sandbox",  # tests may run as root, for which Chromium has none
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--window-size=1200,900",
    "--host-resolver-rules=MAP elsewhere.example 127.0.0.1",
)


def in_chromium(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that needs the browser."""
    missing = pytest.mark.skipif(PROGRAM is None, reason="no Chromium here: make test-web unpacks one")
    marked: Callable[..., None] = pytest.mark.browser(missing(test))
    return marked


class NavigatedError(AssertionError):
    """The page changed during a command."""


class Browser:
    """One browser page, with its console errors and requested addresses."""

    def __init__(self, answers: int, commands: int, wait: float) -> None:
        self._answers, self._commands, self._wait = answers, commands, wait
        self._numbers = itertools.count(1)
        self._held = b""
        self._session: str | None = None
        self.complaints: list[str] = []
        """Console errors: policy violations, failed scripts and missing paths."""
        self.requested: list[str] = []
        """Addresses that the page requested."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Return the result of a command of Chromium's protocol."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != number:
            pass
        if "navigated" in str(answer.get("error")):
            raise NavigatedError(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, url: str) -> None:
        """Load a page completely."""
        self.complaints.clear()
        self.requested.clear()
        self.call("Page.navigate", url=url)
        self.until(f"location.href.startsWith({json.dumps(url)}) && document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page. The page's policy does not apply."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until the expression is true and return its value. The page may change meanwhile."""
        end = time.monotonic() + self._wait
        while time.monotonic() < end:
            with suppress(NavigatedError):
                if value := self.value(expression):
                    return value
            time.sleep(0.02)
        raise AssertionError(f"never true: {expression}")

    def press(self, key: str, code: int, *, text: str = "", modifiers: int = 0) -> None:
        """Press and release a key."""
        named = {"key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **named)
        self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    def type(self, text: str) -> None:
        """Insert text into the focused element."""
        self.call("Input.insertText", text=text)

    def _next(self) -> Any:
        """Return the next message, and record console errors and requests."""
        while b"\0" not in self._held:
            with selectors.DefaultSelector() as ready:
                ready.register(self._answers, selectors.EVENT_READ)
                assert ready.select(self._wait), "no output from Chromium"
            more = os.read(self._answers, 2**20)
            assert more, "Chromium has exited"
            self._held += more
        line, _, self._held = self._held.partition(b"\0")
        message = json.loads(line)
        kind, event_params = message.get("method"), message.get("params", {})
        if kind == "Log.entryAdded" and event_params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(event_params["entry"]["text"])
        elif kind == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(event_params["exceptionDetails"]))
        elif kind == "Runtime.consoleAPICalled":
            self.complaints.append(json.dumps(event_params["args"]))
        elif kind == "Network.requestWillBeSent":
            self.requested.append(event_params["request"]["url"])
        return message


@contextmanager
def chromium(folder: Path, *options: str, wait: float = WAIT) -> Iterator[Browser]:
    """Yield a browser with a profile in `folder` and more `options`. It reads commands from descriptor 3 and writes
    answers to 4. `wait` is for pages that are busy for longer than WAIT.
    """
    assert PROGRAM is not None
    read_commands, commands = _pipe()
    answers, write_answers = _pipe()
    # bash moves the pipes, since descriptors 3 and 4 may be in use in a child of Python.
    command = ["bash", "-c", f'exec "$@" 3<&{read_commands} 4>&{write_answers}', "bash", PROGRAM]
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *_OPTIONS, *options, f"--user-data-dir={folder / 'profile'}"],
            pass_fds=(read_commands, write_answers),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "HOME": str(folder), "no_proxy": "*"},
        )
    try:
        os.close(read_commands)
        os.close(write_answers)
        yield Browser(answers, commands, wait)
    finally:
        os.close(commands)  # Chromium exits when the pipe closes
        os.close(answers)
        try:
            process.wait(WAIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def _pipe() -> tuple[int, int]:
    """Return the ends of a pipe. Their numbers are above the numbers to which bash moves them."""
    low = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in low]
    for end in low:
        os.close(end)
    return high[0], high[1]
