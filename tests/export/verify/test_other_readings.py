"""Checkpoints that transformers and peft read otherwise than a naive reader, against bundles of both readings.

A bundle of each reading is exported from a checkpoint that states it plainly. It is then compared with the checkpoint
that can be misread, whose digests are not checked.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.export.checkpoint.packed_checkpoint import packed_checkpoint, write_config
from tests.export.checkpoints import ONE_LAYER, edit_config, edit_weights, small_checkpoint, tensors_of

from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.export.verify import report
from lopa.export.verify.report import report_from_bundle

pytestmark = pytest.mark.usefixtures("few_cases")
Tensors = dict[str, torch.Tensor]
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
MATRIX = "model.layers.0.mlp.down_proj.weight"


def checkpoint(folder: Path, change: Mapping[str, torch.Tensor] | None = None) -> Path:
    """Write a plain checkpoint with some other tensors."""
    small_checkpoint(folder, changes=ONE_LAYER)
    edit_weights(folder, change or {})
    return folder


def write_index(folder: Path, shards: Mapping[str, Tensors], placed: Mapping[str, str]) -> None:
    for name, tensors in shards.items():
        save_file(tensors, folder / name, {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": dict(placed)}))


Case = tuple[Path, Path, Path]
"""Checkpoint of the naive reading, of the right one, and the checkpoint that can be misread."""


def own_head_beside_ties(folder: Path) -> Case:
    misread = checkpoint(folder / "misread")
    own = tensors_of(misread)
    edit_config(misread, tie_word_embeddings=True)
    naive = checkpoint(folder / "naive", {HEAD: own[EMBEDDING].clone()})
    return naive, checkpoint(folder / "right"), misread


def head_in_two_shards(folder: Path) -> Case:
    """Add the same constant to every row of the head, which changes no probability: only the weights show it."""
    misread = checkpoint(folder / "misread")
    whole = tensors_of(misread)
    (misread / "model.safetensors").unlink()
    first, second = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
    last = {HEAD: whole[HEAD] + 1}
    placed = {name: second if name == MATRIX else first for name in whole}
    rest = {name: tensor for name, tensor in whole.items() if name != MATRIX}
    write_index(misread, {first: rest, second: {MATRIX: whole[MATRIX], **last}}, placed)
    return checkpoint(folder / "naive"), checkpoint(folder / "right", last), misread


def second_version_of_gptq(folder: Path) -> Case:
    settings = {"bits": 4, "group_size": 32, "quant_method": "gptq", "sym": True, "desc_act": False}
    for name in ("naive", "right", "misread"):
        packed_checkpoint(folder / name, second_version=True)
    write_config(folder / "naive", settings)
    write_config(folder / "misread", {**settings, "format": "gptq_v2"})
    return folder / "naive", folder / "right", folder / "misread"


@pytest.mark.parametrize(
    "case",
    [
        own_head_beside_ties,
        head_in_two_shards,
        second_version_of_gptq,
    ],
    ids=lambda case: case.__name__,
)
def test_only_the_reading_of_others_is_ok(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], case: Callable[[Path], Case]
) -> None:
    monkeypatch.setattr(report, "check_origin", lambda *_: None)
    naive, right, misread = case(tmp_path)
    for plain, is_right in ((naive, False), (right, True)):
        bundle = bundle_from_checkpoint(plain, tmp_path / f"{plain.name}-bundle")
        found = report_from_bundle(bundle, checkpoint=misread, device="numpy")
        assert found.ok == is_right, (plain.name, found.errors)
        wrong = {error.reference for error in found.errors if not error.ok}
        assert wrong <= (set() if is_right else {"transformers", "checkpoint"})
    assert capfd.readouterr() == ("", "")  # no progress or warnings of transformers and peft
