"""Recorded decodes on several devices, on portable graphs, and with equal rows of several branches computed once.

`make test` decodes samples, `make test-slow` every trace.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conformance.family_traces import (
    FAMILIES,
    MIXTURES,
    checkpoint_of,
    config_of,
    family_comparisons,
    family_trace_files,
    read_family_traces,
)
from tests.conformance.recorded import (
    Record,
    check_comparisons,
    comparisons_of_file,
    open_test_device,
    read_traces,
    trace_files,
)
from tests.params import params_of

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import Dialect
from lopa.runtime.row_sharing import always
from lopa.runtime.state.packed_rows import SharingTest

FILES = trace_files()
DEVICES = (2, 3, 4, 8)
every_trace = pytest.mark.slow


def name_of(value: object) -> str:
    return value.name.split(".")[0] if isinstance(value, Path) else str(value)


def shares_rows(path: Path) -> bool:
    params = params_of(read_traces(path)[0])
    return params.attention == "block_causal" and params.lookaheads > 0


SHARING = [path for path in FILES if shares_rows(path)]


def reproduce(
    path: Path,
    folder: Path,
    record: Record,
    *,
    devices: int = 1,
    limit: int | None = None,
    sharing: SharingTest | None = None,
) -> None:
    bundle = Bundle.open(folder)
    session = open_test_device(bundle, devices)
    found = comparisons_of_file(path, session, bundle.manifest, limit=limit, sharing=sharing)
    session.close()
    check_comparisons(found, record)


@pytest.mark.parametrize(
    ("path", "devices"), [(path, DEVICES[number % len(DEVICES)]) for number, path in enumerate(FILES)], ids=name_of
)
@pytest.mark.parametrize("limit", [1, pytest.param(None, marks=every_trace)])
def test_several_devices(
    path: Path, devices: int, limit: int | None, tiny_bundle: Path, record_property: Record
) -> None:
    reproduce(path, tiny_bundle, record_property, devices=devices, limit=limit)


SAMPLE = ("d2f_bs16_block", "lopa_bf4_bs16_block")


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[] if name_of(path) in SAMPLE else every_trace) for path in FILES],
    ids=map(name_of, FILES),
)
def test_portable_graphs(path: Path, tiny_portable: Path, record_property: Record) -> None:
    reproduce(path, tiny_portable, record_property)


def test_the_recordings_that_share_rows_exist() -> None:
    assert len(SHARING) == 8


@pytest.mark.parametrize("path", SHARING, ids=name_of)
@pytest.mark.parametrize("limit", [1, pytest.param(None, marks=every_trace)])
def test_shared_rows(path: Path, limit: int | None, tiny_bundle: Path, record_property: Record) -> None:
    reproduce(path, tiny_bundle, record_property, limit=limit, sharing=always)


@every_trace
@pytest.mark.parametrize(
    ("path", "dialect"),
    [
        (path, dialect)
        for folder in (FAMILIES, MIXTURES)
        for path in family_trace_files(folder)
        for dialect in ("standard", "portable")
    ],
    ids=lambda value: f"{checkpoint_of(value).name}-{name_of(value)}" if isinstance(value, Path) else value,
)
def test_every_trace_of_other_families(
    path: Path, dialect: Dialect, family_bundle: Callable[..., Path], record_property: Record
) -> None:
    params = params_of(config_of(read_family_traces(path)[0]))
    options = {"with_logits": True, "dialects": ("standard", "portable")} if params.draws_from_logits else {}
    bundle = Bundle.open(family_bundle(checkpoint_of(path).name, **options)).with_dialect(dialect)
    session = open_test_device(bundle)
    found = family_comparisons(path, session, bundle.manifest)
    session.close()
    check_comparisons(found, record_property)
