"""Saved cases, run again by the real Polygraphy: correct graphs pass in every dialect and type, wrong ones fail."""

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from polygraphy.json import load_json
from tests.cli.make.test_verify import causal_attention, rewrite_graph
from tests.export.replay.replayed import replayed

from lopa.export.progress import silent
from lopa.export.replay.saved_cases import save_cases
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import FileRecord
from lopa.runtime.bundle.record import json_from_record

pytestmark = pytest.mark.usefixtures("few_cases")  # test_page.py runs all cases


def saved(bundle: Path, folder: Path) -> Path:
    save_cases(Bundle.open(bundle), folder, silent)
    return folder


def check_passes(graph: Path, folder: Path) -> None:
    done = replayed(graph, folder)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Passed: 4/4 iterations" in done.stdout


def test_a_float16_bundle_with_logits(tiny_half: Path, tmp_path: Path) -> None:
    folder = saved(tiny_half, tmp_path / "cases")
    ((name, answers),) = load_json(str(folder / "outputs.json")).items()
    assert name == "numpy"
    assert {"logits", "window_key_values.4.value"} <= set(answers[0].keys())
    assert answers[0]["window_key_values.0.key"].dtype == np.float16
    check_passes(tiny_half / "model.onnx", folder)


def test_integers(tiny_quantized: Path, tmp_path: Path) -> None:
    folder = saved(tiny_quantized, tmp_path / "cases")
    check_passes(tiny_quantized / "model.onnx", folder)
    other = Path(shutil.copytree(tiny_quantized, tmp_path / "other"))
    rewrite_graph(other, causal_attention)
    done = replayed(other / "model.onnx", folder)
    assert done.returncode == 1
    assert "entropy: " in done.stdout


@pytest.fixture
def both(tiny_bundle_logits: Path, tiny_portable: Path, tmp_path: Path) -> Path:
    """Return a bundle with two graphs, merged from two bundles with the same weights."""
    path = Path(shutil.copytree(tiny_bundle_logits, tmp_path / "both"))
    other = Bundle.open(tiny_portable)
    assert other.manifest.tensors == Bundle.open(path).manifest.tensors
    shutil.copy(other.graph, path / "portable.onnx")
    manifest = Bundle.open(path).manifest
    record = FileRecord(path="portable.onnx", size=other.graph.stat().st_size, sha256="0" * 64)
    changed = msgspec.structs.replace(
        manifest, portable_graph="portable.onnx", rotary_inputs=["portable"], files=[*manifest.files, record]
    )
    (path / "manifest.json").write_bytes(json_from_record(changed))
    return path


def test_both_dialects_and_a_wrong_weight(both: Path, tmp_path: Path) -> None:
    folder = saved(both, tmp_path / "cases")
    check_passes(both / "model.onnx", folder)
    check_passes(both / "portable.onnx", folder / "portable")
    assert "past_key_values:[10,2,64,32]" in (folder / "portable" / "trt-shapes.txt").read_text()

    record = Bundle.open(both).manifest.tensors["layers.3.mlp.down.weight"]
    data = np.memmap(both / "model.onnx.data", np.uint8, mode="r+")
    weights = data[record.offset : record.offset + record.length].view(record.dtype)
    weights[:200] += 0.05
    data.flush()
    done = replayed(both / "model.onnx", folder)
    assert done.returncode == 1
    wrong = {line.partition(":")[0] for line in done.stdout.splitlines() if ", tolerance " in line}
    assert {"entropy", "topk_logprobs", "window_key_values.4.key"} <= wrong
    assert "window_key_values.3.value" not in wrong  # before the wrong weight


def test_shapes_of_all_forwards_fit_the_written_range(tiny_bundle: Path, tmp_path: Path) -> None:
    folder = saved(tiny_bundle, tmp_path / "cases")
    smallest, best, largest = (folder / "trt-shapes.txt").read_text().splitlines()
    assert smallest.startswith("--trt-min-shapes input_ids:[1,1,1] position_ids:[1,1,1] window_mask:[1,1,1,1] ")
    assert largest.startswith("--trt-max-shapes input_ids:[3,3,20] ")
    assert best.replace("--trt-opt-", "--trt-max-") == largest
    names = {word.partition(":")[0] for word in largest.split()[1:]}
    assert names == set(load_json(str(folder / "inputs.json"))[0])
