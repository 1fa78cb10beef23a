"""Comparison of an engine with references, which run the same cases as complete sequences without a cache.

One reference needs only the bundle: numpy on the bundle's own weights. It finds errors of the graph, but not weights
that differ from the checkpoint's.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np

from lopa.export.progress import ProgressCallback, silent
from lopa.export.verify.cases import Case, Sequences, cases_from_manifest
from lopa.export.verify.differences import (
    Difference,
    OutputError,
    difference_of,
    differences_of_statistics,
    tolerance_of,
)
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import (
    TILE,
    CacheRows,
    Float32,
    Rows,
    Statistics,
    WindowBatch,
    float32_from_stored,
    window_names,
)
from lopa.runtime.errors import CheckFailedError, EngineFailedError, LopaError
from lopa.runtime.sessions.numpy_session import numpy_forward_from_bundle
from lopa.runtime.sessions.prefix_cache import cache_shape_from_manifest
from lopa.runtime.sessions.sequential_session import SequentialSession
from lopa.runtime.sessions.session import Session


@dataclass(frozen=True, eq=False)
class WholeForward:
    """Result of a reference for the B complete sequences of one request."""

    logits: Float32
    """Logits of the sampled positions, [B, Q, V], before any temperature."""
    rows: tuple[Rows, ...]
    """Keys and values of all L rows after RoPE, in the order of contract.window_names, each [B, Hkv, L, D]."""


class Reference(Protocol):
    """Forward of complete sequences in float32, without a cache."""

    @property
    def name(self) -> str:
        """Name in reports."""

    def forward(self, sequences: Sequences) -> WholeForward:
        """Run the sequences of one request."""


@dataclass(frozen=True)
class Report:
    """Result of a completed check."""

    cases: int
    errors: tuple[OutputError, ...]

    @property
    def ok(self) -> bool:
        """True if every output is within its tolerance."""
        return all(error.ok for error in self.errors)


class NumpyReference:
    """Reference by lopa.runtime.sessions.numpy_forward on the bundle's own weights, in float32 for any bundle.

    For a quantized bundle it uses the dequantized weights and rounds no activations.
    """

    name = "numpy"

    def __init__(self, bundle: Bundle) -> None:
        manifest = msgspec.structs.replace(bundle.manifest, with_logits=True, dtype="float32")
        self._forward = numpy_forward_from_bundle(bundle, manifest)
        self._no_prefix = cache_shape_from_manifest(manifest).zeros(1, TILE)

    def forward(self, sequences: Sequences) -> WholeForward:
        """Run the sequences as windows with an empty prefix."""
        batch = WindowBatch(
            requests=(0,),
            input_ids=sequences.input_ids[None],
            position_ids=sequences.position_ids[None],
            window_mask=sequences.mask[None],
            logits_index=sequences.wanted[None],
            temperature=np.ones(1, np.float32),
        )
        statistics, rows = self._forward.run(batch, self._no_prefix)
        assert statistics.logits is not None  # requested by with_logits above
        return WholeForward(statistics.logits[0], tuple(array[0] for array in rows))


class CachedReference:
    """Reference with a cache of results, since every graph of a bundle gets the same cases.

    It caches the first results, up to `max_bytes` in total, and computes the others each time.
    """

    def __init__(self, reference: Reference, max_bytes: int = 1 << 30) -> None:
        self.name = reference.name
        self._reference = reference
        self._free_bytes = max_bytes
        self._cache: dict[bytes, WholeForward] = {}

    def forward(self, sequences: Sequences) -> WholeForward:
        """Return the reference's result for these sequences."""
        arrays = (sequences.input_ids, sequences.position_ids, sequences.mask, sequences.wanted)
        key = repr([array.shape for array in arrays]).encode() + b"".join(array.tobytes() for array in arrays)
        if key in self._cache:
            return self._cache[key]
        result = self._reference.forward(sequences)
        size = sum(array.nbytes for array in (result.logits, *result.rows))
        if size <= self._free_bytes:
            self._free_bytes -= size
            self._cache[key] = result
        return result


def report_from_session(
    session: Session,
    manifest: Manifest,
    references: Sequence[Reference],
    progress: ProgressCallback = silent,
    stage: str = "comparing",
    *,
    rounding: str | None = None,
) -> Report:
    """Run all cases (lopa.export.verify.cases) through `session` and every reference.

    `progress` receives the number of finished cases of `stage`. An engine that rounds otherwise than the bundle's
    type gets the tolerance of `rounding`, a key of TOLERANCES. Raises CheckFailedError if the engine itself fails.
    """
    cases = list(cases_from_manifest(manifest))
    found: dict[str, _Differences] = {reference.name: _Differences() for reference in references}
    sequential = SequentialSession(session)
    for number, case in enumerate(cases):
        progress(stage, number, len(cases))
        answer = _answer_from_session(sequential, case)
        for reference in references:
            _compare(answer, case, reference, found[reference.name])
    progress(stage, len(cases), len(cases))
    tolerance = tolerance_of(manifest, rounding if manifest.quantization is None else None)
    return Report(
        cases=len(cases),
        errors=tuple(
            OutputError(name, output, difference, tolerance.limit, by_rms=tolerance.by_rms)
            for name, differences in found.items()
            for output, difference in differences.worst_of_layers().items()
        ),
    )


class _Differences:
    """Differences from one reference, by output."""

    def __init__(self) -> None:
        self._found: dict[str, Difference] = {}

    def add(self, output: str, difference: Difference) -> None:
        known = self._found.get(output)
        self._found[output] = difference if known is None else known.merged_with(difference)

    def worst_of_layers(self) -> dict[str, Difference]:
        """Return the differences by output.

        Of all keys, only the one with the largest relative difference is included. The same holds for values.
        """
        rows: dict[str, tuple[str, Difference]] = {}
        for output, difference in self._found.items():
            group = re.sub(r"\.\d+\.", ".*.", output)
            if group not in rows or difference.relative > rows[group][1].relative:
                rows[group] = (output, difference)
        return dict(rows.values())


@dataclass(frozen=True, eq=False)
class _Answer:
    """Results of an engine for one case."""

    statistics: Statistics
    rows: tuple[tuple[CacheRows, ...], ...]
    """New rows of the window, by request and branch."""
    committed: tuple[tuple[CacheRows, ...], ...]
    """Committed rows, by request and chunk."""


def _answer_from_session(session: SequentialSession, case: Case) -> _Answer:
    batch = case.window
    try:
        committed = tuple(_committed_rows(session, case, slot) for slot in range(len(batch.requests)))
        statistics = session.forward(batch)
        branches, width = batch.input_ids.shape[1:]
        rows = tuple(
            tuple(session.read_rows(request, branch, width) for branch in range(branches)) for request in batch.requests
        )
    except Exception as error:  # engines raise exceptions of their own libraries
        if isinstance(error, LopaError) and not isinstance(error, EngineFailedError):
            raise
        reason, remedy = (error.received, f"{error.remedy}; ") if isinstance(error, LopaError) else (error, "")
        raise CheckFailedError(
            f"the engine on {session.device} failed on {case.shape}: {reason}",
            expected="results for every window that the contract allows",
            remedy=remedy + "export the checkpoint again; if that fails too, report it with this message",
        ) from error
    finally:
        for request in batch.requests:
            session.free(request)
    return _Answer(statistics, rows, committed)


def _committed_rows(session: SequentialSession, case: Case, slot: int) -> tuple[CacheRows, ...]:
    """Run and commit every chunk of a request. Return the rows that the engine computed for each."""
    rows = []
    for batch in case.prefix_batches(slot):
        (request,), count = batch.requests, batch.input_ids.shape[-1]
        session.forward(batch)
        rows.append(session.read_rows(request, 0, count))
        session.commit(request, 0, count)
    return tuple(rows)


def _compare(answer: _Answer, case: Case, reference: Reference, differences: _Differences) -> None:
    """Add the differences of all requests of a case."""
    for slot, sequences in enumerate(case.sequences):
        expected = reference.forward(sequences)
        statistics = answer.statistics.part(slice(slot, slot + 1))
        temperature = case.window.temperature[slot : slot + 1]
        for output, difference in differences_of_statistics(statistics, expected.logits[None], temperature).items():
            differences.add(output, difference)
        names = window_names(len(expected.rows) // 2)
        for branch, window in enumerate(answer.rows[slot]):
            pieces = [rows.layers for rows in (*answer.committed[slot], window)]
            for i, (name, whole) in enumerate(zip(names, expected.rows, strict=True)):
                rows = float32_from_stored(np.concatenate([layers[i] for layers in pieces], axis=1))  # [Hkv, L, D]
                differences.add(name, difference_of(rows, whole[branch]))
