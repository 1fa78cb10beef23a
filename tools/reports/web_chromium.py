"""lopa-web in headless Chromium: seconds of forwards and answers, the first load of a page, and memory."""

import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.serve.chromium import PROGRAM, Browser, chromium
from tests.web.page_tasks import SOFTWARE_WEBGPU, outcome
from tests.web.static_host import FilesAndBundles, StaticFiles, hosted

from lopa.cli.make.page import command as page_command
from lopa.runtime.errors import MissingBackendError

WEB = Path(__file__).resolve().parents[2] / "web"
WAIT = 3600.0
"""Seconds after which a page counts as hung. A forward of a large model stalls it for long."""
_PAUSE = 0.1
"""Seconds between two looks at the memory of Chromium."""
_ANSWER = """
void (async () => {
  const source = await lopaSource;
  const began = performance.now();
  const body = { prompt: %s, max_tokens: %d, temperature: 0, lopa: { stop_at_eos: false } };
  let first = null;
  for await (const { choices: [choice] } of source.events("v1/completions", body, new AbortController().signal)) {
    if (choice.text && first === null) first = performance.now() - began;
    if (choice.finish_reason) {
      const { tokens, steps } = choice.lopa;
      const seconds = (performance.now() - began) / 1000;
      return { first: first === null ? null : first / 1000, seconds, tokens, steps };
    }
  }
})().then((value) => (globalThis.timed = { value }), (error) => (globalThis.timed = { error: String(error) }));
"""


@dataclass(frozen=True)
class Visit:
    """First visit to the page that `lopa-export page` writes, and one answer."""

    sent: int
    """Bytes of the files that the host sent."""
    ready: float
    """Seconds from navigation until the page can decode."""
    first: float | None
    """Seconds from the prompt to the first text, or None if the answer has no text."""
    seconds: float
    """Seconds of the answer."""
    tokens: int
    forwards: int
    threads: int
    memory: int
    """Maximum bytes of all processes of Chromium: the sum of their proportional shares (PSS)."""
    browser: str
    """Name and version of the browser."""


def times_in_chromium(
    bundle: Path, device: str, shapes: Sequence[Sequence[int]], *, tokens: int, turns: int
) -> dict[str, Any]:
    """Return what web/test/speed.mjs prints, measured in a page. Raises MissingBackendError without Chromium."""
    _check_chromium()
    argument = {"device": device, "shapes": shapes, "tokens": tokens, "turns": turns}
    with (
        TemporaryDirectory() as folder,
        hosted(WEB, FilesAndBundles, bundles={"bundle": bundle}) as address,
        chromium(Path(folder), *SOFTWARE_WEBGPU, wait=WAIT) as browser,
    ):
        found: dict[str, Any] = outcome(browser, address, "time", wait=WAIT, **argument)
    return found


def visit(bundle: Path, prompt: str, *, tokens: int) -> Visit:
    """Visit a page of the bundle with a new profile of Chromium. Raises MissingBackendError without Chromium."""
    _check_chromium()
    with TemporaryDirectory() as folder:
        page, profile, sent = Path(folder, "page"), Path(folder, "profile"), list[int]()
        arguments = [str(bundle), "-o", str(page), "--packages", str(WEB)]
        page_command.main(arguments, standalone_mode=False)
        profile.mkdir()
        with hosted(page, _CountedFiles, sent=sent) as address, chromium(profile, wait=WAIT) as browser:
            with _peak_memory() as peak:
                start = time.perf_counter()
                browser.open(f"{address}/index.html")
                browser.until("document.getElementById('model')?.textContent")
                ready = time.perf_counter() - start
                loaded = sum(sent)
                browser.value(_ANSWER % (json.dumps(prompt), tokens))
                answer = _timed(browser)
            threads = browser.value("crossOriginIsolated ? navigator.hardwareConcurrency : 1")
            version = browser.call("Browser.getVersion")["product"]
    return Visit(
        sent=loaded,
        ready=ready,
        first=answer["first"],
        seconds=answer["seconds"],
        tokens=answer["tokens"],
        forwards=answer["steps"],
        threads=threads,
        memory=max(peak),
        browser=version,
    )


def _timed(browser: Browser) -> dict[str, Any]:
    found = browser.until("globalThis.timed")
    assert "error" not in found, found["error"]
    value: dict[str, Any] = found["value"]
    return value


def _check_chromium() -> None:
    if PROGRAM is None:
        raise MissingBackendError("no Chromium", expected="a browser", remedy="run `make test-web`, which unpacks one")


class _CountedFiles(StaticFiles):
    """Files whose sizes are noted when they are sent."""

    def __init__(self, *arguments: Any, sent: list[int], **options: Any) -> None:
        self._sent = sent
        super().__init__(*arguments, **options)

    def copyfile(self, source: Any, outputfile: Any) -> None:
        self._sent.append(os.fstat(source.fileno()).st_size)
        super().copyfile(source, outputfile)


@contextmanager
def _peak_memory() -> Iterator[list[int]]:
    """Yield a list that gets the memory of all child processes, in bytes, again and again."""
    found, ended = [_memory_of_children()], threading.Event()

    def look() -> None:
        while not ended.wait(_PAUSE):
            found.append(_memory_of_children())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def _memory_of_children() -> int:
    """Return the proportional shares (PSS) of all processes that this process has started, in bytes."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:  # the process has ended
            continue
    found, total = {os.getpid()}, 0
    while more := {process for process, parent in parents.items() if parent in found} - found:
        found |= more
    for process in found - {os.getpid()}:
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total
