"""ONNX Runtime GenAI's own int4 of a checkpoint: its model builder, and forwards of the model that it makes.

The builder turns a folder that looks like Qwen2 into int4 MatMulNBits with its GroupQueryAttention, as for any decoder
of text from left to right. The model is therefore causal. It runs in this environment's ONNX Runtime, where keys and
values of the prefix are inputs, so that a forward is repeatable.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort

from lopa.export.staging import Product, staged_folder
from lopa.runtime.contract import Float32, Int64
from tools.peers import genai_builder
from tools.peers.peer_command import run_or_missing

PACKAGE = "onnxruntime-genai"
_MODEL = Product("model of ONNX Runtime GenAI", "genai_config.json")
_BUILDER = Path("onnxruntime_genai", "models", "builder.py")
_GRAPH = "model.onnx"


def build_genai_model(checkpoint: Path, package: Path, folder: Path, threads: int) -> None:
    """Make the folder `folder` from a checkpoint with Qwen2's layers by the builder installed in `package`.

    Raises MissingBackendError if the builder fails.
    """
    with staged_folder(folder, overwrite=False, product=_MODEL) as place:
        source, model = place / "source", place / "model"
        _write_qwen2_folder(checkpoint, source)
        words = ["-i", source, "-o", model, "-p", "int4", "-e", "cpu", "-c", place / "cache"]
        run_or_missing(
            [sys.executable, "-m", genai_builder.__name__, str((package / _BUILDER).parent), *map(str, words)],
            "building the model of ONNX Runtime GenAI",
            {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads)},
        )
        for path in list(model.iterdir()):
            path.rename(place / path.name)
        model.rmdir()
        for path in source.iterdir():
            path.unlink()
        source.rmdir()


def install_genai_package(folder: Path) -> None:
    """Install the package into the new folder `folder`, without its requirements. Only its builder is used."""
    with staged_folder(folder, overwrite=False, product=Product("installation", str(_BUILDER))) as place:
        words = ["install", "--quiet", "--no-deps", "--target", str(place), PACKAGE]
        run_or_missing([sys.executable, "-m", "pip", *words], f"installing {PACKAGE}")


class CausalModel:
    """Forwards of windows after a prefix. Every row sees the earlier rows only."""

    def __init__(self, folder: Path, threads: int) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = ort.InferenceSession(str(folder / _GRAPH), options, providers=["CPUExecutionProvider"])
        settings = json.loads((folder / _MODEL.marker).read_text(encoding="utf-8"))
        self._head_size = int(settings["model"]["decoder"]["head_size"])
        self._past_inputs = [each for each in self._session.get_inputs() if each.name.startswith("past_key_values")]
        self._past: dict[str, Float32] = {}
        self._feed: dict[str, Float32 | Int64] = {}
        self._logits: Float32 | None = None

    def first(self, tokens: Int64) -> None:
        """Run a forward of `tokens` [W] from nothing."""
        self._session.run(["logits"], self._inputs(tokens[None], self._empty_past()))

    def prefix(self, tokens: Int64) -> None:
        """Compute the keys and values of `tokens` [P] for the following windows. Includes the logits of all rows."""
        outputs = [each.name.replace("past_key_values", "present") for each in self._past_inputs]
        found = self._session.run(outputs, self._inputs(tokens[None], self._empty_past()))
        self._past = {each.name: array for each, array in zip(self._past_inputs, found, strict=True)}

    def windows(self, tokens: Int64) -> None:
        """Set the window `tokens` [1, W]. GroupQueryAttention continues only one sequence at a time."""
        self._feed = self._inputs(tokens, self._past)

    def run(self) -> None:
        """Run one forward of the windows."""
        (self._logits,) = self._session.run(["logits"], self._feed)

    def write_answer(self, path: Path) -> str:
        """Write the logits, float32 [B, W, V]."""
        assert self._logits is not None, "answer before run"
        self._logits.astype(np.float32, copy=False).tofile(path)
        return "logits"

    def _inputs(self, tokens: Int64, past: dict[str, Float32]) -> dict[str, Float32 | Int64]:
        length = next(iter(past.values())).shape[2] + tokens.shape[1]
        return {"input_ids": tokens, "attention_mask": np.ones((len(tokens), length), np.int64), **past}

    def _empty_past(self) -> dict[str, Float32]:
        return {each.name: np.zeros((1, each.shape[1], 0, self._head_size), np.float32) for each in self._past_inputs}


def _write_qwen2_folder(checkpoint: Path, folder: Path) -> None:
    """Link the checkpoint's files into the new folder `folder`, with a config.json that names Qwen2."""
    folder.mkdir()
    for path in checkpoint.iterdir():
        if path.name != "config.json":
            (folder / path.name).symlink_to(path.resolve())
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    config |= {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
