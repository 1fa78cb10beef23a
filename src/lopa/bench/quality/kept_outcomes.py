"""Outcomes of `bench --quality` on disk, so that a run that was stopped goes on, and a finished one takes more.

While a run decodes, every outcome is a line of FOLDER/quality.outcomes.jsonl. The report of a finished run,
FOLDER/quality.json, has all of them, and that file goes. A resumed run reads both. An outcome is found again by its
prompt, its configuration and the options of that: what changed is decoded again. Does not decode.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from lopa.bench.eval_set import EvalItem
from lopa.bench.quality.outcome import Outcome
from lopa.bench.quality.report import QualityReport
from lopa.bench.report import PromptFile, Run, files_of_report
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.output_file import OutputLines, place_of_output, write_whole
from lopa.runtime.files.untrusted_input import bytes_from_file, value_from_json
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.requests.result import GenerationResult

_EXPECTED = "outcomes that bench --quality --output wrote"
_REMEDY = "leave --resume out, or give another --output"
_MAX_BYTES = 2**30


class KeptOutcome(msgspec.Struct, frozen=True):
    """Outcome of one prompt with one configuration."""

    prompt: str
    """Digest of the prompt with all that is asked of it."""
    config: str
    """Name of the configuration."""
    options: str
    """Digest of its options."""
    outcome: Outcome
    text: str | None = None
    """The answer, of a prompt with a task_id."""


class _Begun(msgspec.Struct, frozen=True):
    """First line of the file of a run that has not finished; of a report what is read."""

    run: Run
    prompts: PromptFile


class _Report(msgspec.Struct, frozen=True):
    run: Run
    prompts: PromptFile
    outcomes: list[KeptOutcome] | None = None


@dataclass(frozen=True)
class ResumableReport(QualityReport):
    """A report with the outcomes that it is made of."""

    outcomes: tuple[KeptOutcome, ...] = ()


class KeptOutcomes:
    """The outcomes of a run, kept in its folder as they come."""

    def __init__(self, folder: Path, name: str, run: Run, prompts: PromptFile) -> None:
        """For the report `name` in `folder`, of a run on these prompts; nothing is read or written yet."""
        self._report, self._path = files_of_report(folder, name)[0], folder / f"{name}.outcomes.jsonl"
        self._begun = _Begun(run, prompts)
        self._found: dict[tuple[str, str, str], KeptOutcome] = {}
        self._lines: OutputLines | None = None

    def __len__(self) -> int:
        """Number of outcomes that are known."""
        return len(self._found)

    def read(self) -> None:
        """Take over what earlier runs left.

        Raises BadInputError for outcomes of another bundle, device, number of threads, processor or file of prompts.
        """
        if self._report.is_file():
            source = str(self._report)
            text = bytes_from_file(self._report, expected=_EXPECTED, remedy=_REMEDY, most=_MAX_BYTES)
            report = value_from_json(text, _Report, source=source, expected=_EXPECTED, remedy=_REMEDY)
            if report.outcomes is None:
                raise BadInputError(f"{source} has no outcomes", expected=_EXPECTED, remedy=_REMEDY)
            self._check(source, report.run, report.prompts)
            self._take(report.outcomes)
        if self._path.is_file():
            source = str(self._path)
            text = bytes_from_file(self._path, expected=_EXPECTED, remedy=_REMEDY, most=_MAX_BYTES)
            lines = text.split(b"\n")[:-1]  # a last line without its end was cut off
            for number, line in enumerate(lines, start=1):
                words = {"source": f"{source} line {number}", "expected": _EXPECTED, "remedy": _REMEDY}
                if number == 1:
                    begun = value_from_json(line, _Begun, **words)
                    self._check(source, begun.run, begun.prompts)
                else:
                    self._take([value_from_json(line, KeptOutcome, **words)])

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep every outcome that is added inside; the file goes with `finish`.

        Raises BadInputError where it cannot be written.
        """
        place_of_output(self._path)
        records = [self._begun, *self._found.values()]
        write_whole(self._path, b"".join(msgspec.json.encode(record) + b"\n" for record in records))
        try:
            with OutputLines.open(place_of_output(self._path)) as self._lines:
                self._lines.begin(self._path.stat().st_size)
                yield
        except BaseException:
            if not self._found:
                self.finish()
            raise

    def find(self, item: EvalItem, name: str, config: GenerationConfig) -> Outcome | None:
        """The outcome of a configuration on a prompt, if it is known."""
        kept = self._found.get(_key(item, name, config))
        return None if kept is None else kept.outcome

    def text(self, item: EvalItem, name: str, config: GenerationConfig) -> str | None:
        """The answer to a prompt with a task_id, if it is known."""
        kept = self._found.get(_key(item, name, config))
        return None if kept is None else kept.text

    def add(
        self, item: EvalItem, name: str, config: GenerationConfig, outcome: Outcome, result: GenerationResult
    ) -> None:
        """Keep an outcome. Raises OutputFailedError where it cannot be written."""
        key = _key(item, name, config)
        kept = KeptOutcome(*key, outcome, None if item.task_id is None else result.text)
        self._found[key] = kept
        if self._lines is not None:
            self._lines.write(msgspec.json.encode(kept).decode())

    def of_report(self, report: QualityReport) -> ResumableReport:
        """`report` with everything that is kept."""
        fields = {name: getattr(report, name) for name in QualityReport.__dataclass_fields__}
        return ResumableReport(**fields, outcomes=tuple(self._found.values()))

    def finish(self) -> None:
        """The report is written and has everything: the file of the run is no longer needed."""
        self._path.unlink(missing_ok=True)

    def _take(self, records: list[KeptOutcome]) -> None:
        self._found |= {(record.prompt, record.config, record.options): record for record in records}

    def _check(self, source: str, run: Run, prompts: PromptFile) -> None:
        own = self._begun
        for what, found, expected in (
            ("bundle", run.bundle_sha256, own.run.bundle_sha256),
            ("file of prompts", prompts.sha256, own.prompts.sha256),
            ("device", run.device, own.run.device),
            ("number of threads", run.threads, own.run.threads),
            ("processor", run.machine.cpu, own.run.machine.cpu),
        ):
            if found != expected:
                raise BadInputError(
                    f"--resume with outcomes of another {what} in {source}: {found}",
                    expected=f"{expected}, as in this run",
                    remedy=_REMEDY,
                )


def _key(item: EvalItem, name: str, config: GenerationConfig) -> tuple[str, str, str]:
    return _digest(asdict(item)), name, _digest(config.requested())


def _digest(value: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
