"""Forwards with the reference's results, in a folder for Polygraphy: cases of lopa-export verify, or failed ones."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from lopa.export.progress import ProgressCallback
from lopa.export.replay.answered_forward import AnsweredForward
from lopa.export.replay.forwards_folder import ComparisonRule, write_forwards
from lopa.export.replay.recorded_session import RecordedSession
from lopa.export.staging import Product, staged_folder
from lopa.export.verify.cases import Case, cases_from_manifest
from lopa.export.verify.token_gate import GateTolerance, gate_tolerance
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.sessions.numpy_session import open_session
from lopa.runtime.sessions.prefix_cache import cache_shape_from_manifest
from lopa.runtime.sessions.sequential_session import SequentialSession

SAVED = Product("folder of forwards", "rule.json")
_STAGE = "saving cases"
_SCATTER = 3.0
"""Factor for RMS tolerances of single cases. The tolerances are meant for all cases together, and a case of one row has
larger errors. Measured with the tiny checkpoint over 20 seeds: at most 0.33 in int8 and 0.087 in int4, both of the
entropy.
"""


def save_cases(bundle: Bundle, folder: Path, progress: ProgressCallback) -> None:
    """Write the cases for every graph of `bundle`.

    `folder` appears complete or not at all. It has the files for the first graph, and for a second graph a folder named
    after its dialect. Raises BadInputError if it cannot be written.
    """
    forwards = list(_answered_cases(bundle, progress))
    rule = _rule_of_cases(bundle.manifest)
    with staged_folder(folder, overwrite=False, product=SAVED) as staged:
        first, *others = bundle.dialects
        write_forwards(staged, forwards, first, rule, bundle.manifest.rotary)
        for dialect in others:
            (staged / dialect).mkdir()
            write_forwards(staged / dialect, forwards, dialect, rule, bundle.with_dialect(dialect).manifest.rotary)


def _rule_of_cases(manifest: Manifest) -> ComparisonRule:
    tolerance = gate_tolerance(manifest, "graph")
    allowed = tolerance.statistics * _SCATTER if tolerance.by_rms else tolerance.statistics
    return ComparisonRule(reference="numpy", tolerance=allowed, by_rms=tolerance.by_rms, margin=None)


def _answered_cases(bundle: Bundle, progress: ProgressCallback) -> Iterator[AnsweredForward]:
    cases = list(cases_from_manifest(bundle.manifest))
    shape = cache_shape_from_manifest(bundle.manifest)
    with closing(RecordedSession(open_session(bundle, "numpy", threads=None), shape)) as session:
        for number, case in enumerate(cases):
            progress(_STAGE, number, len(cases))
            yield _answered(session, case)
    progress(_STAGE, len(cases), len(cases))


def _answered(recorded: RecordedSession, case: Case) -> AnsweredForward:
    session = SequentialSession(recorded)
    case.commit_prefixes(session)
    session.forward(case.window)
    answered = recorded.last_forward()
    for request in case.window.requests:
        session.free(request)
    return answered


MAX_FORWARDS = 8
"""Maximum number of stored forwards. Each has the prefixes and new rows of all its windows, in memory and on disk."""


class FailedForwards:
    """Collection of failed forwards, up to MAX_FORWARDS of them."""

    def __init__(self) -> None:
        self.count = 0
        """Number of failed forwards, including forwards that are not stored."""
        self._kept: list[AnsweredForward] = []

    def add_last(self, session: RecordedSession) -> None:
        """Store the last forward of `session`, which runs on the reference device."""
        self.count += 1
        if len(self._kept) < MAX_FORWARDS:
            self._kept.append(session.last_forward())

    def save(self, folder: Path, reference: str, tolerance: GateTolerance) -> int:
        """Write the stored forwards, at least one, to a new folder. Return their number.

        Raises BadInputError if the folder cannot be written.
        """
        rule = ComparisonRule(
            reference=reference, tolerance=tolerance.statistics, by_rms=tolerance.by_rms, margin=tolerance.margin
        )
        with staged_folder(folder, overwrite=False, product=SAVED) as staged:
            write_forwards(staged, self._kept, "standard", rule)
        return len(self._kept)
