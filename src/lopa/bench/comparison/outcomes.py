"""Outcomes of decoded questions, the source of all figures. They are kept on disk to resume or extend a run.

Every outcome is a line of FOLDER/NAME.outcomes.jsonl, which stays beside the report. A resumed run reads it. Prompt,
configuration and options identify an outcome. If one of them changes, the prompt is decoded again.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from lopa.bench.eval_set import EvalItem
from lopa.bench.report import PromptFile, Run
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.output_file import OutputLines, inspect_output_path, write_atomically
from lopa.runtime.files.untrusted_input import bytes_from_file, value_from_json
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.requests.result import GenerationResult

_EXPECTED = "outcomes that the same command wrote to --output"
_REMEDY = "omit --resume, or choose another --output"
_MAX_BYTES = 2**30
_Kind = TypeVar("_Kind")


@dataclass(frozen=True)
class DecodeOutcome:
    """Outcome of one prompt decoded with one configuration."""

    score: float | None
    """1 for a correct answer and 0 for a wrong one, or None if it is not scored here."""
    steps: int
    """Number of forwards. The published scripts count one more, a round without a forward."""
    tokens: int
    """Generated tokens up to and including the first end-of-text."""
    generated_positions: int
    """All generated positions, as counted by the paper."""
    seconds: float


@dataclass(frozen=True)
class KeptOutcome:
    """Stored outcome with its identification."""

    prompt: str
    """Digest of the prompt and its decoding settings."""
    config: str
    """Name of the configuration."""
    options: str
    """Digest of its options."""
    outcome: DecodeOutcome
    text: str | None = None
    """Answer, for prompts with a task_id."""


def outcome_from_result(item: EvalItem, result: GenerationResult) -> DecodeOutcome:
    """Return the outcome of the answer to `item`."""
    return DecodeOutcome(
        score=float(item.is_right(result.text)) if item.verdict else None,
        steps=result.steps,
        tokens=result.tokens,
        generated_positions=result.generated_positions,
        seconds=result.seconds,
    )


class _RunHeader(msgspec.Struct, frozen=True):
    """First line of the file."""

    run: Run
    prompts: PromptFile


class KeptOutcomes:
    """Outcomes of a run, stored in its folder as they arrive."""

    def __init__(self, folder: Path, name: str, run: Run, prompts: PromptFile) -> None:
        """Prepare the outcomes of report `name` in `folder`. Nothing is read or written yet."""
        self._path = folder / f"{name}.outcomes.jsonl"
        self._header = _RunHeader(run, prompts)
        self._found: dict[tuple[str, str, str], KeptOutcome] = {}
        self._lines: OutputLines | None = None

    def read(self) -> None:
        """Read the outcomes of earlier runs.

        Raises BadInputError for outcomes of another bundle, device, number of threads, CPU or prompt file.
        """
        if not self._path.is_file():
            return
        text = bytes_from_file(self._path, expected=_EXPECTED, remedy=_REMEDY, max=_MAX_BYTES)
        for number, line in enumerate(text.split(b"\n")[:-1], start=1):  # ignore an incomplete last line
            source = f"{self._path} line {number}"
            if number == 1:
                self._check(_parse(line, _RunHeader, source))
            else:
                record = _parse(line, KeptOutcome, source)
                self._found[record.prompt, record.config, record.options] = record

    @contextmanager
    def writing(self, *, resume: bool, note: Callable[[str], None]) -> Iterator[None]:
        """Store every outcome that is added within the context.

        With `resume`, outcomes of earlier runs are read first. `note` receives the number of outcomes that a resumed
        run starts from, and the number that an interrupted run leaves. Raises BadInputError if the file cannot be
        written, and as `read`.
        """
        if resume:
            self.read()
            note(f"{self._path.parent} holds {len(self._found)} outcomes, which are kept")
        inspect_output_path(self._path)
        records = [self._header, *self._found.values()]
        write_atomically(self._path, b"".join(msgspec.json.encode(record) + b"\n" for record in records))
        try:
            with OutputLines.open(inspect_output_path(self._path)) as self._lines:
                self._lines.begin(self._path.stat().st_size)
                yield
        except BaseException:
            if self._found:
                note(f"{self._path.parent} holds {len(self._found)} outcomes: --resume continues after them")
            else:
                self._path.unlink()
            raise

    def find(self, item: EvalItem, name: str, config: GenerationConfig) -> KeptOutcome | None:
        """Return the outcome of a configuration on a prompt, or None."""
        return self._found.get(_key(item, name, config))

    def outcomes(self, items: Sequence[EvalItem], name: str, config: GenerationConfig) -> list[KeptOutcome | None]:
        """Return the outcomes of a configuration, None for prompts without one."""
        return [self.find(item, name, config) for item in items]

    def texts(self, items: Sequence[EvalItem], name: str, config: GenerationConfig) -> list[str | None]:
        """Return the answers of a configuration, None for prompts without a task_id."""
        return [None if each is None else each.text for each in self.outcomes(items, name, config)]

    def add(self, item: EvalItem, name: str, config: GenerationConfig, outcome: DecodeOutcome, text: str) -> None:
        """Store an outcome with its answer. Raises OutputFailedError if it cannot be written."""
        key = _key(item, name, config)
        kept = self._found[key] = KeptOutcome(*key, outcome, None if item.task_id is None else text)
        if self._lines is not None:
            self._lines.write(msgspec.json.encode(kept).decode())

    def _check(self, header: _RunHeader) -> None:
        run, own = header.run, self._header
        for what, found, expected in (
            ("bundle", run.bundle_sha256, own.run.bundle_sha256),
            ("file of prompts", header.prompts.sha256, own.prompts.sha256),
            ("device", run.device, own.run.device),
            ("number of threads", run.threads, own.run.threads),
            ("CPU", run.machine.cpu, own.run.machine.cpu),
        ):
            if found != expected:
                raise BadInputError(
                    f"--resume with outcomes of another {what} in {self._path}: {found}",
                    expected=f"{expected}, as in this run",
                    remedy=_REMEDY,
                )


def _parse(text: bytes, kind: type[_Kind], source: str) -> _Kind:
    return value_from_json(text, kind, source=source, expected=_EXPECTED, remedy=_REMEDY)


def _key(item: EvalItem, name: str, config: GenerationConfig) -> tuple[str, str, str]:
    return _digest(asdict(item)), name, _digest(config.requested())


def _digest(value: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
