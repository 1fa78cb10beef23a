"""Cases of two processes that write the same results file under different names, while signals end them."""

import json
import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.fuzz.case import Case, Material
from tools.fuzz.decode import PROMPT, forked_command

_NAMES = ("out", "link", "hard", "folder/../out")
"""Names of the same file."""
_SIGNALS = (None, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
_MAX_DELAY = 0.6
"""Seconds, about the duration of a whole run."""
_REFUSED = "another process is writing it"


@dataclass(frozen=True)
class _Process:
    """A forked process, and the file with its standard error."""

    id: int
    log: Path

    def end(self, after: signal.Signals | None = None) -> str:
        """Wait for the process and return "done", "ended" (by `after`) or "refused". Raises RuntimeError for any other
        end."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.id, 0)[1])
        text = self.log.read_text(errors="replace")
        if "Traceback" not in text:
            if code == 0:
                return "done"
            if after is not None and code in (-after, 128 + after):
                return "ended"
            if code == 2 and _REFUSED in text:
                return "refused"
        raise RuntimeError(f"exit code {code}: {text[-300:]}")


@dataclass(frozen=True)
class _Writer:
    """One of the two processes."""

    name: str
    resumes: bool
    max_num_seqs: int

    def start(self, bundle: Path, folder: Path, prompts: str = "in.jsonl") -> _Process:
        """Start the command in a forked process, so this one stays without threads."""
        paths = (bundle, "--prompts", folder / prompts, "--output", folder / self.name)
        flags = ("--max-num-seqs", self.max_num_seqs, "--threads", 1, *(["--resume"] if self.resumes else []))
        log = folder / f"log-{len(list(folder.glob('log-*')))}.txt"
        return _Process(forked_command(("generate", *paths, *flags), log), log)


def writers_case(rng: random.Random, folder: Path, material: Material) -> Case:
    """Run two `generate --prompts --output` on one file. In half of the cases the first one waits for the second."""
    lines = [{"prompt": PROMPT, "max_new_tokens": rng.choice([8, 16, 24])} for _ in range(rng.randrange(2, 9))]
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    (folder / "in.jsonl").write_bytes(text)
    (folder / "folder").mkdir()
    (folder / "link").symlink_to("out")
    names = [name for name in _NAMES if name != "hard"]
    if rng.random() < 0.5:
        (folder / "out").touch()
        (folder / "hard").hardlink_to(folder / "out")
        names.append("hard")
    writers = [_Writer(rng.choice(names), rng.random() < 0.5, rng.choice([1, 1, 4])) for _ in range(2)]
    number = rng.choice(_SIGNALS)
    waits = rng.random() < 0.5
    delays = [rng.random() * _MAX_DELAY for _ in range(2)]

    def run() -> None:
        _run_alone(_Writer("reference", False, 1), material.bundle, folder)
        expected = _answers(folder / "reference")
        if waits:
            _one_waits(writers, material.bundle, folder, text, number)
        else:
            _both_race(writers, material.bundle, folder, number, delays)
        found = _answers(folder / "out") if (folder / "out").exists() else []
        if found != expected[: len(found)]:
            raise RuntimeError(
                f"both writers left {len(found)} lines, which are not a prefix of the {len(expected)} expected"
            )
        _run_alone(_Writer("out", True, 1), material.bundle, folder)
        if _answers(folder / "out") != expected:
            raise RuntimeError("results after --resume differ from those of an undisturbed run")

    ended = "" if number is None else f", {number.name}"
    shown = " and ".join(f"{each.name}{' resumed' if each.resumes else ''}" for each in writers)
    return Case(f"{shown}: {'the first waits' if waits else 'a race'}{ended}", run)


def _one_waits(
    writers: Sequence[_Writer], bundle: Path, folder: Path, text: bytes, number: signal.Signals | None
) -> None:
    """Start the second process while the first has its output but no prompts. The second must be refused."""
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    first = writers[0].start(bundle, folder, fifo.name)
    with fifo.open("wb") as file:  # blocks until the first process opens it, after its output
        found = writers[1].start(bundle, folder).end()
        if found != "refused":
            raise RuntimeError(f"the second of two writers ended as {found}, not refused")
        if number is None:
            file.write(text)
        else:
            os.kill(first.id, number)
    found = first.end(number)
    if found == "refused" or (number is None and found != "done"):
        raise RuntimeError(f"the first of two writers ended as {found}")


def _both_race(
    writers: Sequence[_Writer], bundle: Path, folder: Path, number: signal.Signals | None, delays: Sequence[float]
) -> None:
    """Start both processes, and in some cases end the first one. At least one of them must finish or be ended."""
    first = writers[0].start(bundle, folder)
    time.sleep(delays[0])
    second = writers[1].start(bundle, folder)
    if number is not None:
        time.sleep(delays[1])
        os.kill(first.id, number)
    ends = [first.end(number), second.end()]
    if ends.count("refused") == 2 or (number is None and "done" not in ends):
        raise RuntimeError(f"two writers ended as {' and '.join(ends)}")


def _run_alone(writer: _Writer, bundle: Path, folder: Path) -> None:
    found = writer.start(bundle, folder).end()
    if found != "done":
        raise RuntimeError(f"a single writer ended as {found}")


def _answers(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a results file, without fields that differ between runs."""
    content = path.read_bytes()
    found = [json.loads(line) for line in content[: content.rfind(b"\n") + 1].splitlines()]
    return [{name: value for name, value in each.items() if name != "seconds"} for each in found]
