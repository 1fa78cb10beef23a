"""Checks of engines for Qualcomm NPUs that need neither onnxruntime-qnn nor its emulator."""

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.runtime.qnn.engines import SMALL, empty_engine
from tests.runtime.random_windows import random_batch

from lopa.export.qnn.build import check_bundle, engine_from_bundle
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract.batch_parts import Part
from lopa.runtime.contract.rotary import RotaryAngles
from lopa.runtime.errors import BadInputError, MissingBackendError
from lopa.runtime.qnn.qnn_forward import inputs_of_part
from lopa.runtime.qnn.qnn_library import find_devices
from lopa.runtime.qnn.qnn_manifest import SOCS, QnnSoc, soc_from_option, soc_of_machine
from lopa.runtime.qnn.qnn_session import check_chip, check_engine
from lopa.runtime.sessions.prefix_cache import cache_shape_from_manifest
from lopa.runtime.sessions.session import open_session


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Bundle:
    return Bundle.open(Path(shutil.copytree(tiny_bundle, tmp_path / "bundle")))


def test_names_of_chips() -> None:
    assert soc_from_option("sm8650") == soc_from_option("57:75") == SOCS["SM8650"]
    assert soc_from_option("60:73") == QnnSoc("60-v73", 60, 73)
    with pytest.raises(BadInputError, match=r"unknown chip 'SM8651'\n  expected: .*SM8650"):
        soc_from_option("SM8651")


def test_chip_of_a_machine(tmp_path: Path) -> None:
    (tmp_path / "machine").write_text("SM8750\n")
    assert soc_of_machine(tmp_path / "machine") == "SM8750"
    assert soc_of_machine(tmp_path / "absent") is None


def test_an_engine_for_another_chip(bundle: Bundle) -> None:
    stored = empty_engine(bundle)
    for fitting in (None, "SM8650", "a board that names no chip"):
        check_chip(stored, fitting, bundle)
    with pytest.raises(BadInputError, match="was compiled for SM8650, but this machine has SM8750"):
        check_chip(stored, "SM8750", bundle)


def test_a_requested_chip_without_an_engine(bundle: Bundle) -> None:
    with pytest.raises(BadInputError, match="no engine for Qualcomm NPUs"):
        open_session(bundle, "qnn")
    empty_engine(bundle)
    empty_engine(bundle, "SM8750")
    with pytest.raises(BadInputError, match="has engines for SM8650, SM8750, but not for SM8550"):
        open_session(bundle, "qnn:SM8550")
    with pytest.raises(BadInputError, match=r"(?s)has engines for SM8650, SM8750\n  expected: the name of one chip"):
        open_session(bundle, "qnn")


def test_an_engine_without_the_graph_of_a_bucket(bundle: Bundle) -> None:
    path = empty_engine(bundle).folder / "engine.json"
    path.write_text(path.read_text().replace('"graph": "bucket-0.onnx"', '"graph": "bucket-1.onnx"'))
    with pytest.raises(BadInputError, match="1 of them without a graph"):
        open_session(bundle, "qnn")


def test_an_engine_of_another_version_or_other_weights(bundle: Bundle) -> None:
    stored = empty_engine(bundle)
    check_engine(stored, bundle, "1.2.3")
    with pytest.raises(BadInputError, match=r"compiled by QNN 1\.2\.3, but 2\.51\.0 is installed"):
        check_engine(stored, bundle, "2.51.0")
    other = empty_engine(bundle, "SM8750", weights="f" * 64)
    with pytest.raises(BadInputError, match="built from other weights"):
        check_engine(other, bundle, "1.2.3")


def test_a_missing_package(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime_qnn", None)
    empty_engine(bundle)
    with pytest.raises(MissingBackendError, match=r"(?s)onnxruntime-qnn cannot be imported.*pip.*install"):
        open_session(bundle, "qnn")
    with pytest.raises(MissingBackendError, match="onnxruntime-qnn cannot be imported"):
        engine_from_bundle(bundle, SOCS["SM8650"], [SMALL], lambda _name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert [device.is_here for device in find_devices("qnn")] == [False]


def test_unfit_bundles_are_refused() -> None:
    for plugins, dtype, is_fp8, reason in (
        ([], "bfloat16", False, "bfloat16, which QNN lacks"),
        (["x"], "float32", False, "functions of"),
        ([], "float32", True, "FP8 matrices, which QNN lacks"),
    ):
        manifest = SimpleNamespace(plugins=plugins, dtype=dtype, is_fp8=is_fp8)
        with pytest.raises(BadInputError, match=reason):
            check_bundle(SimpleNamespace(manifest=manifest, path="B"))  # type: ignore[arg-type]


def test_inputs_are_padded_to_the_bucket(bundle: Bundle) -> None:
    rng = np.random.default_rng(0)
    prefix = cache_shape_from_manifest(bundle.manifest).zeros(2, 128)
    prefix.block[...] = rng.standard_normal(prefix.block.shape)
    prefix.mask[1, :40] = True
    batch = random_batch(rng, [1, 2], 2, 30, 8, starts=1000)
    part = Part(slice(1, 2), slice(0, 1))
    inputs = inputs_of_part(batch.part(*part), part, prefix, SMALL, RotaryAngles(32, 10000.0))
    assert inputs["prefix_mask"].shape == (1, 64)
    assert inputs["prefix_mask"].sum() == 40
    np.testing.assert_array_equal(inputs["past_key_values.0.value"], prefix.block[1, 1:2, :, :64])
    angles = (1000 + np.arange(30, dtype=np.float32))[:, None] * RotaryAngles(32, 10000.0).inverse_frequencies()
    np.testing.assert_array_equal(inputs["rotary_cos"][0, 0, :30], np.cos(angles))
    assert inputs["rotary_cos"].shape == (1, 1, 64, 16)
    assert "position_ids" not in inputs
