"""Holds an engine against references: every case through the engine's session with its prefix cache, and through each
reference as whole sequences.

Brings the reference that needs nothing but the bundle: numpy on the bundle's own weights. That one finds a graph that
computes something else; it cannot find weights that differ from the checkpoint's.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec
import numpy as np

from lopa.export.progress import Progress, silent
from lopa.export.verify.cases import Case, Sequences, cases_from_manifest
from lopa.export.verify.differences import (
    RMS_TOLERANCES,
    TOLERANCES,
    Difference,
    OutputError,
    difference_of,
    differences_of_statistics,
)
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import TILE, CacheRows, Float32, Rows, Statistics, WindowBatch, window_names
from lopa.runtime.contract.stored_floats import float32_from_stored
from lopa.runtime.errors import CheckFailedError, EngineFailedError, LopaError
from lopa.runtime.sessions.numpy_session import numpy_forward_from_bundle
from lopa.runtime.sessions.prefix_cache import cache_shape_from_manifest
from lopa.runtime.sessions.session import Session


@dataclass(frozen=True, eq=False)
class WholeForward:
    """What a reference answers for the B whole sequences of one request."""

    logits: Float32
    """[B, Q, V] of the wanted rows, before any temperature."""
    rows: tuple[Rows, ...]
    """Key and value of all L rows after RoPE, in the order of contract.window_names: each [B, Hkv, L, D]."""


class Reference(Protocol):
    """A forward of whole sequences in float32, without a cache."""

    @property
    def name(self) -> str:
        """As a report calls it."""

    def forward(self, sequences: Sequences) -> WholeForward:
        """Run the sequences of one request."""


@dataclass(frozen=True)
class Report:
    """The outcome of a check that ran to its end."""

    cases: int
    errors: tuple[OutputError, ...]

    @property
    def ok(self) -> bool:
        """Whether every output is within its tolerance."""
        return all(error.ok for error in self.errors)


class NumpyReference:
    """The bundle's own weights through lopa.runtime.sessions.numpy_session, in float32 whatever the bundle's type.

    Of a quantized bundle it takes what the integers stand for, and rounds no activation.
    """

    name = "numpy"

    def __init__(self, bundle: Bundle) -> None:
        manifest = msgspec.structs.replace(bundle.manifest, with_logits=True, dtype="float32")
        self._forward = numpy_forward_from_bundle(bundle, manifest)
        self._no_prefix = cache_shape_from_manifest(manifest).zeros(1, TILE)

    def forward(self, sequences: Sequences) -> WholeForward:
        """Run the sequences as windows behind an empty prefix."""
        batch = WindowBatch(
            requests=(0,),
            input_ids=sequences.input_ids[None],
            position_ids=sequences.position_ids[None],
            window_mask=sequences.mask[None],
            logits_index=sequences.wanted[None],
            temperature=np.ones(1, np.float32),
        )
        statistics, rows = self._forward.run(batch, self._no_prefix)
        assert statistics.logits is not None  # the manifest above asks for them
        return WholeForward(statistics.logits[0], tuple(array[0] for array in rows))


class RememberedReference:
    """Another reference, whose answers are kept: every graph of a bundle is asked the same cases.

    Keeps `most_bytes` of answers, the first ones; what is asked beyond is computed each time.
    """

    def __init__(self, reference: Reference, most_bytes: int = 1 << 30) -> None:
        self.name = reference.name
        self._reference = reference
        self._room = most_bytes
        self._kept: dict[bytes, WholeForward] = {}

    def forward(self, sequences: Sequences) -> WholeForward:
        """As the other answers, or answered, sequences of this content."""
        arrays = (sequences.input_ids, sequences.position_ids, sequences.mask, sequences.wanted)
        asked = repr([array.shape for array in arrays]).encode() + b"".join(array.tobytes() for array in arrays)
        if asked in self._kept:
            return self._kept[asked]
        answer = self._reference.forward(sequences)
        size = sum(array.nbytes for array in (answer.logits, *answer.rows))
        if size <= self._room:
            self._room -= size
            self._kept[asked] = answer
        return answer


def report_from_session(
    session: Session,
    manifest: Manifest,
    references: Sequence[Reference],
    progress: Progress = silent,
    stage: str = "comparing",
    *,
    rounded_to: Literal["bfloat16"] | None = None,
) -> Report:
    """Run all cases (lopa.export.verify.cases) through `session` and every reference.

    `progress` is told how many of the cases are done, as those of `stage`. An engine that rounds to another type than
    the bundle's, `rounded_to`, has that one's tolerance. Raises CheckFailedError when the engine itself fails.
    """
    cases = list(cases_from_manifest(manifest))
    found: dict[str, _Differences] = {reference.name: _Differences() for reference in references}
    for number, case in enumerate(cases):
        progress(stage, number, len(cases))
        answer = _answer_from_session(session, case)
        for reference in references:
            _compare(answer, case, reference, found[reference.name])
    progress(stage, len(cases), len(cases))
    quantization = manifest.quantization
    floats = TOLERANCES[manifest.dtype if rounded_to is None else rounded_to]
    tolerance = floats if quantization is None else RMS_TOLERANCES[quantization.kind]
    return Report(
        cases=len(cases),
        errors=tuple(
            OutputError(name, output, difference, tolerance, by_rms=quantization is not None)
            for name, differences in found.items()
            for output, difference in differences.worst_of_layers().items()
        ),
    )


class _Differences:
    """Gathers comparisons with one reference, by output."""

    def __init__(self) -> None:
        self._found: dict[str, Difference] = {}

    def add(self, output: str, difference: Difference) -> None:
        known = self._found.get(output)
        self._found[output] = difference if known is None else known.with_another(difference)

    def worst_of_layers(self) -> dict[str, Difference]:
        """By output; of those of all layers, the key and the value that differ most relative to their layer's."""
        rows: dict[str, tuple[str, Difference]] = {}
        for output, difference in self._found.items():
            group = re.sub(r"\.\d+\.", ".*.", output)
            if group not in rows or difference.relative > rows[group][1].relative:
                rows[group] = (output, difference)
        return dict(rows.values())


@dataclass(frozen=True, eq=False)
class _Answer:
    """What an engine answered for one case."""

    statistics: Statistics
    rows: tuple[tuple[CacheRows, ...], ...]
    """By request and branch: the window's new rows."""
    committed: tuple[tuple[CacheRows, ...], ...]
    """By request and chunk: the rows that were committed."""


def _answer_from_session(session: Session, case: Case) -> _Answer:
    batch = case.window
    try:
        committed = tuple(_committed_rows(session, case, slot) for slot in range(len(batch.requests)))
        statistics = session.forward(batch)
        branches, width = batch.input_ids.shape[1:]
        rows = tuple(
            tuple(session.read_rows(request, branch, width) for branch in range(branches)) for request in batch.requests
        )
    except Exception as error:  # every engine has exceptions of its own
        if isinstance(error, LopaError) and not isinstance(error, EngineFailedError):
            raise
        raise CheckFailedError(
            f"the engine on {session.device} failed on {case.shape}: {error}",
            expected="an answer for every window of the contract",
            remedy="export the checkpoint again; if that fails too, report it with this message",
        ) from error
    finally:
        for request in batch.requests:
            session.release(request)
    return _Answer(statistics, rows, committed)


def _committed_rows(session: Session, case: Case, slot: int) -> tuple[CacheRows, ...]:
    """Forward and commit every chunk of a request; the rows of each, as the engine computed them."""
    rows = []
    for batch in case.prefix_batches(slot):
        (request,), count = batch.requests, batch.input_ids.shape[-1]
        session.forward(batch)
        rows.append(session.read_rows(request, 0, count))
        session.commit(request, 0, count)
    return tuple(rows)


def _compare(answer: _Answer, case: Case, reference: Reference, differences: _Differences) -> None:
    """Add the differences of all requests of one case."""
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
