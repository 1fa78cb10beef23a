"""int4 bundles whose matrices a session unpacks give the results of an int8 bundle with the same numbers."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.export.checkpoints import small_checkpoint
from tests.runtime.random_windows import random_batch

from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.export.verify.differences import RMS_TOLERANCES, TOLERANCES
from lopa.export.verify.report import report_from_bundle
from lopa.export.weights.plan import IntegerDtype
from lopa.export.weights.quantization import QuantizationChoice
from lopa.runtime.bundle import Bundle, quantized_form
from lopa.runtime.bundle.manifest import scale_name
from lopa.runtime.bundle.unpacked_int4 import int4_tensor_names, unpack_matrices
from lopa.runtime.contract import Floats
from lopa.runtime.contract.model_part import ModelPart, whole_model
from lopa.runtime.errors import BadInputError
from lopa.runtime.sessions.session import open_session

SIZES = {"intermediate_size": 64, "vocab_size": 33}
"""Two layers, and a head with an odd number of outputs."""


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[IntegerDtype, Bundle]:
    """Return an int8 and an int4 bundle of one checkpoint."""
    folder = tmp_path_factory.mktemp("unpacked")
    checkpoint = small_checkpoint(folder / "checkpoint", changes=SIZES)
    kinds: tuple[IntegerDtype, ...] = ("int4", "int8")
    return {
        kind: bundle_from_checkpoint(checkpoint, folder / kind, quantization=QuantizationChoice(kind)) for kind in kinds
    }


@pytest.fixture(autouse=True)
def undecided() -> Iterator[None]:
    """Reset the process-wide choice, so that each test starts like a new process."""
    quantized_form._has_memory.cache_clear()
    yield
    quantized_form._has_memory.cache_clear()


def log_probabilities(bundle: Bundle, device: str = "cpu") -> Floats:
    """Return the log-probabilities of fixed random windows."""
    batch = random_batch(np.random.default_rng(0), [0], 2, 8, 8)
    batch = replace(batch, input_ids=batch.input_ids % SIZES["vocab_size"])
    session = open_session(bundle, device, threads=1)
    try:
        return session.forward(batch).topk_logprobs
    finally:
        session.close()


def with_numbers_of(int4: Bundle, int8: Bundle, folder: Path) -> Bundle:
    """Return `int8` with the unpacked integers and scales of `int4`."""
    for record in int8.manifest.files:
        (folder / record.path).write_bytes(int8.file(record.path).read_bytes())
    data = np.memmap(folder / int8.manifest.weights, np.uint8, mode="r+")
    for name, array in unpack_matrices(int4, whole_model(2)).arrays.items():
        record = int8.manifest.tensors[name]
        assert record.shape == list(array.shape)
        data[record.offset : record.offset + record.length] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
    data.flush()
    return Bundle(folder, int8.manifest)


def test_unpacked_is_an_int8_bundle_of_the_same_numbers(
    bundles: dict[IntegerDtype, Bundle], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(quantized_form.VARIABLE, "unpacked")
    same = with_numbers_of(bundles["int4"], bundles["int8"], tmp_path)
    unpacked = log_probabilities(bundles["int4"])
    assert (unpacked == log_probabilities(same)).all()
    monkeypatch.setenv(quantized_form.VARIABLE, "packed")
    packed = log_probabilities(bundles["int4"])
    assert (packed != unpacked).any()
    plain = log_probabilities(bundles["int4"], "numpy")
    assert packed == pytest.approx(plain, abs=0.05)
    assert unpacked == pytest.approx(plain, abs=0.05)


def test_stages_have_the_matrices_of_their_layers(bundles: dict[IntegerDtype, Bundle]) -> None:
    manifest = bundles["int4"].manifest
    first, second = (int4_tensor_names(manifest, ModelPart(i, i + 1, 2)) for i in range(2))
    assert {name.split(".")[1] for name in first} == {"0"}
    assert {name.split(".")[0] for name in second} == {"layers", "head"}
    assert first + second == int4_tensor_names(manifest, whole_model(2))


def test_verify_checks_every_form(bundles: dict[IntegerDtype, Bundle], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(quantized_form.VARIABLE, "unpacked")
    report = report_from_bundle(bundles["int4"])
    names = {error.output: error.tolerance for error in report.errors}
    assert report.ok
    assert names["cpu-unpacked/entropy"] == RMS_TOLERANCES["int8"]
    assert names["entropy"] == TOLERANCES["float32"]  # no activation is rounded
    assert "cpu-mapped/entropy" not in names
    monkeypatch.setenv(quantized_form.VARIABLE, "packed")
    assert not [error.output for error in report_from_bundle(bundles["int4"]).errors if "unpacked" in error.output]


def test_memory_chooses_once_in_a_process(bundles: dict[IntegerDtype, Bundle], monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = bundles["int4"]
    need = sum(
        record.length // np.dtype(np.int8).itemsize
        for name, record in bundles["int8"].manifest.tensors.items()
        if scale_name(name) in bundles["int8"].manifest.tensors
    )
    monkeypatch.delenv(quantized_form.VARIABLE, raising=False)
    monkeypatch.setattr(quantized_form, "kernel_library", lambda: None)
    for free, form in ((2 * need, "unpacked"), (2 * need - 1, "packed"), (None, "packed")):
        quantized_form._has_memory.cache_clear()
        monkeypatch.setattr(quantized_form, "free_memory", lambda free=free: free)
        assert quantized_form.cpu_form(bundle) == form
        monkeypatch.setattr(quantized_form, "free_memory", lambda form=form: 0 if form == "unpacked" else 4 * need)
        assert quantized_form.cpu_form(bundle) == form


def test_too_little_memory_and_unknown_forms_are_rejected(
    bundles: dict[IntegerDtype, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantized_form, "free_memory", lambda: 1000)
    monkeypatch.setenv(quantized_form.VARIABLE, "unpacked")
    with pytest.raises(BadInputError, match="of memory are free"):
        open_session(bundles["int4"], "cpu", threads=1)
    monkeypatch.setenv(quantized_form.VARIABLE, "8")
    with pytest.raises(BadInputError, match=f"{quantized_form.VARIABLE}='8'"):
        open_session(bundles["int4"], "cpu", threads=1)


def test_a_full_temporary_folder_is_rejected(
    bundles: dict[IntegerDtype, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(quantized_form.VARIABLE, "unpacked")
    monkeypatch.setattr("tempfile.tempdir", str(bundles["int4"].path / "absent"))
    with pytest.raises(BadInputError, match="cannot make a temporary file"):
        open_session(bundles["int4"], "cpu", threads=1)


def test_a_bundle_without_the_graph_stays_packed(
    bundles: dict[IntegerDtype, Bundle], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(quantized_form.VARIABLE, "unpacked")
    with caplog.at_level(logging.WARNING):
        assert quantized_form.cpu_form(bundles["int4"].without_cpu_graphs()) == "packed"
        assert quantized_form.cpu_form(bundles["int8"]) == "packed"
    assert caplog.text.count("export the checkpoint again") == 2
