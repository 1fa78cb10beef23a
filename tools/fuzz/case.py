"""A mutated case of the fuzzer, and its outcome."""

import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from lopa.runtime.errors import CheckFailedError, LopaError

Class = Literal["typed", "same", "fine", "differ", "foreign", "hang", "memory", "crash"]
"""Outcome classes of a case (tools/fuzz/README.md explains them)."""
CLASSES: tuple[Class, ...] = get_args(Class)
_PROJECT_FOLDERS = ("runtime", "export", "cli", "bench", "serve", "plugins", "tiny", "tools")
VERIFY_SECONDS = 40
"""Processor seconds of `lopa-export verify`, which computes every case of the contract with numpy in 7 to 8 seconds."""


@dataclass(frozen=True)
class Case:
    """A mutation that was made, and a function that uses the mutated input."""

    mutation: str
    """Short description of the mutation."""
    run: Callable[[], object]
    """Function that uses the input as a user does and returns an answer. It runs in a separate process with limits."""
    expected: object = None
    """Answer without the mutation, or None if only a proper end is required."""
    processor_seconds: int = 0
    """Limit for cases that need more than others, such as an export or a verify."""
    may_differ: bool = False
    """True if the mutation may change the answer (weights, constants of the graph, options)."""


@dataclass(frozen=True)
class CaseOutcome:
    """Outcome of one case."""

    kind: str
    seed: int
    found: Class
    mutation: str
    place: str = ""
    """Last line of our own code in the traceback."""
    error: str = ""
    seconds: float = 0.0
    """Processor seconds."""
    may_differ: bool = False

    @property
    def name(self) -> str:
        """Arguments that replay the case."""
        return f"{self.kind} {self.seed}"

    @property
    def bad(self) -> bool:
        """True if the outcome is a defect."""
        return self.found in ("foreign", "hang", "memory", "crash") or (self.found == "differ" and not self.may_differ)


@dataclass
class Material:
    """Inputs to mutate, with their answers: a bundle with two stages, a portable one, and their checkpoint."""

    bundle: Path
    portable: Path
    checkpoint: Path
    adapter: Path
    answers: dict[str, list[int]] = field(default_factory=dict)
    """Token ids by way to decode (tools/fuzz/material.py)."""


MakeCase = Callable[[random.Random, Path, Material], Case]
"""Function from a random state and an empty folder to a case."""


def class_of_error(error: BaseException) -> Class:
    """Return the class of a case that raised an exception."""
    chain = error
    while chain is not None:
        if isinstance(chain, MemoryError):
            return "memory"
        chain = chain.__cause__ or chain.__context__  # type: ignore[assignment]
    if isinstance(error, TimeoutError):
        return "hang"  # raised when a case waits for another process
    if isinstance(error, ChildProcessError):
        return "crash"
    if isinstance(error, CheckFailedError):
        return "foreign"  # no case runs a check that may fail
    if isinstance(error, LopaError) and error.exit_code in (2, 3):
        return "typed"
    return "foreign"


def place_of_error(error: BaseException) -> str:
    """Return file and line of the last frame of our code, such as runtime/bundle/costs.py:137."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        parts = Path(frame.filename).parts
        if len(parts) > 1 and parts[-2] in _PROJECT_FOLDERS:
            return f"{parts[-2]}/{parts[-1]}:{frame.lineno}"
    return "?"
