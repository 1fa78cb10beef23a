"""One mutated case of the fuzzer and what became of it. Knows no kind of case."""

import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from lopa.runtime.errors import CheckFailedError, LopaError

Class = Literal["typed", "same", "fine", "differ", "foreign", "hang", "memory", "crash"]
"""What a case can become (tools/fuzz/README.md says what each means)."""
CLASSES: tuple[Class, ...] = get_args(Class)
_PROJECT_FOLDERS = ("runtime", "export", "cli", "bench", "serve", "plugins", "tiny", "tools")
VERIFY_SECONDS = 40
"""A whole `lopa-export verify` computes every case of the contract with numpy: 7 to 8 seconds of processor time."""


@dataclass(frozen=True)
class Case:
    """A mutation that has been made, and how to use what was mutated."""

    mutation: str
    """In words, short."""
    run: Callable[[], object]
    """Uses it as a user would, and gives an answer. Runs in a process of its own, under limits."""
    expected: object = None
    """Answer of `run` without the mutation; None where only a proper end is required."""
    processor_seconds: int = 0
    """What it may take, where that is more than others may: an export that traces its graph, a verify."""
    may_differ: bool = False
    """Another answer is as good: the mutation changed what decides it (weights, the graph's constants, options)."""


@dataclass(frozen=True)
class Outcome:
    """What became of one case."""

    kind: str
    seed: int
    found: Class
    mutation: str
    place: str = ""
    """The last of our own lines in the traceback."""
    error: str = ""
    seconds: float = 0.0
    """Of processor time."""
    may_differ: bool = False

    @property
    def name(self) -> str:
        """What replays it."""
        return f"{self.kind} {self.seed}"

    @property
    def bad(self) -> bool:
        """Whether it is a defect."""
        return self.found in ("foreign", "hang", "memory", "crash") or (self.found == "differ" and not self.may_differ)


@dataclass
class Material:
    """What is mutated: a bundle with two stages, a portable one, their checkpoint; and what they answer unmutated."""

    bundle: Path
    portable: Path
    checkpoint: Path
    adapter: Path
    answers: dict[str, list[int]] = field(default_factory=dict)
    """Token ids, by the way to decode (tools/fuzz/material.py)."""


MakeCase = Callable[[random.Random, Path, Material], Case]
"""Makes the case of a random state in an empty folder."""


def class_of_error(error: BaseException) -> Class:
    """What an exception that leaves the outermost function makes of a case."""
    chain = error
    while chain is not None:
        if isinstance(chain, MemoryError):
            return "memory"
        chain = chain.__cause__ or chain.__context__  # type: ignore[assignment]
    if isinstance(error, TimeoutError):
        return "hang"  # of another process, which a case waited for
    if isinstance(error, ChildProcessError):
        return "crash"
    if isinstance(error, CheckFailedError):
        return "foreign"  # nothing here is a check that may fail
    if isinstance(error, LopaError) and error.exit_code in (2, 3):
        return "typed"
    return "foreign"


def place_of_error(error: BaseException) -> str:
    """File and line of the last frame that is ours, such as runtime/bundle/buckets.py:137."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        parts = Path(frame.filename).parts
        if len(parts) > 1 and parts[-2] in _PROJECT_FOLDERS:
            return f"{parts[-2]}/{parts[-1]}:{frame.lineno}"
    return "?"
