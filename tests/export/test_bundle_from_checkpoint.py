import hashlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest
from tests.export.checkpoints import (
    CONFIG,
    ONE_LAYER,
    edit_config,
    enlarge_vocabulary,
    failed_export,
    shard,
    small_checkpoint,
)
from tests.python_path import python_path

from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import BadInputError
from lopa.tiny import ADAPTER, CHECKPOINT

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": python_path()}

# The program exports until the first weights are written, then waits to be killed.
STALLING_EXPORT = """
import sys, time
from pathlib import Path
from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint

def stall(stage, done, total):
    if done:
        print("writing", flush=True)
        time.sleep(600)

bundle_from_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]), progress=stall)
"""


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_tiny_bundle_is_complete(tiny_bundle: Path) -> None:
    bundle = Bundle.open(tiny_bundle)
    assert bundle.altered_files() == []
    manifest = bundle.manifest
    names = {"manifest.json", "model.onnx", "model.cpu.onnx", "model.cuda.onnx", "model.onnx.data", "tokenizer.json"}
    names.add("tokenizer_config.json")
    assert set(_files(tiny_bundle)) == names
    assert {record.path for record in manifest.files} == names - {"manifest.json"}
    assert (manifest.architecture, manifest.dialect, manifest.dtype) == ("dream", "standard", "float32")
    assert (manifest.prediction_shift, manifest.with_logits, manifest.decoding.add_bos) == (1, False, True)
    tokens = manifest.special_tokens
    assert (tokens.mask, tokens.eos, tokens.pad, tokens.bos) == (2, 0, 0, 1)
    for folder, digests in ((CHECKPOINT, manifest.origin.checkpoint), (ADAPTER, manifest.origin.adapter)):
        for name, digest in digests.items():
            assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    assert set(manifest.origin.checkpoint) == {"config.json", "model.safetensors", "tokenizer.json"}
    assert set(manifest.origin.adapter) == {"adapter_config.json", "adapter_model.safetensors"}
    assert {"torch", "onnxscript"} <= set(manifest.origin.tools)


def test_shards_give_the_bundle_of_the_single_file(tmp_path: Path) -> None:
    """Check also that two exports give the same bytes, except the manifest's record of its origin."""
    checkpoint = small_checkpoint(tmp_path / "checkpoint", changes=ONE_LAYER)
    single = _files(bundle_from_checkpoint(checkpoint, tmp_path / "single").path)
    shards = shard(checkpoint)
    sharded = _files(bundle_from_checkpoint(checkpoint, tmp_path / "sharded").path)
    origin = json.loads(sharded.pop("manifest.json"))["origin"]["checkpoint"]
    single.pop("manifest.json")
    assert sharded == single
    described = {"config.json", "model.safetensors.index.json", "tokenizer.json"}
    assert set(origin) == described | {path.name for path in shards}


def test_a_checkpoint_without_a_beginning_of_text(tmp_path: Path) -> None:
    checkpoint = small_checkpoint(tmp_path / "checkpoint", changes={**ONE_LAYER, "bos_token_id": None})
    (checkpoint / "tokenizer_config.json").unlink()
    stages: list[tuple[str, int, int]] = []
    bundle = bundle_from_checkpoint(
        checkpoint, tmp_path / "bundle", progress=lambda stage, done, total: stages.append((stage, done, total))
    )
    assert bundle.manifest.special_tokens.bos is None
    assert bundle.manifest.decoding.add_bos is False
    assert bundle.file("tokenizer_config.json").read_bytes() == b"{}\n"
    written = [(done, total) for stage, done, total in stages if stage == "writing weights"]
    assert written == sorted(written)
    assert written[-1][0] == written[-1][1] == bundle.weights.stat().st_size
    onnxruntime.InferenceSession(bundle.graph, providers=["CPUExecutionProvider"])


def test_an_existing_destination_is_rejected_before_any_work(tmp_path: Path, tiny_bundle: Path) -> None:
    with pytest.raises(BadInputError, match="exists"):
        bundle_from_checkpoint(tmp_path / "no checkpoint", tiny_bundle)


def test_a_killed_export_leaves_no_bundle_and_the_next_succeeds(tmp_path: Path) -> None:
    checkpoint = small_checkpoint(tmp_path / "checkpoint", changes=ONE_LAYER)
    place = tmp_path / "place"
    place.mkdir()
    command = [sys.executable, "-c", STALLING_EXPORT, str(checkpoint), str(place / "bundle")]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "writing\n"
        killed.send_signal(signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL
    assert not (place / "bundle").exists()
    assert [path.name for path in place.iterdir()] == [f".bundle.partial-{killed.pid}"]
    bundle = bundle_from_checkpoint(checkpoint, place / "bundle")
    assert bundle.altered_files() == []
    assert [path.name for path in place.iterdir()] == ["bundle"]


def test_a_disk_with_too_little_free_space(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Export a sparse checkpoint whose bundle would need twice the free space.

    It fails before any reading or writing.
    """
    free = shutil.disk_usage(tmp_path).free
    checkpoint = small_checkpoint(tmp_path / "checkpoint", changes={"num_hidden_layers": 1})
    rows = free // CONFIG["hidden_size"] // 4
    edit_config(checkpoint, vocab_size=rows)
    enlarge_vocabulary(checkpoint, rows)
    message = failed_export(capsys, checkpoint)
    stated = [int(number) for number in re.findall(r"(\d+) bytes", message)]
    assert stated[0] == pytest.approx(free, rel=0.2)
    assert stated[1] >= 2 * 4 * rows * CONFIG["hidden_size"]


def test_a_full_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A limit of the file size simulates it: a write in the middle of the weights fails."""
    checkpoint = tmp_path / "checkpoint"
    checkpoint.symlink_to(CHECKPOINT)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        message = failed_export(capsys, checkpoint)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert f"error: {tmp_path / 'bundles' / 'bundle'} cannot be written: File too large" in message
    assert "writing weights" in message
    assert "free disk space" in message
