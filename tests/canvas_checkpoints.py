"""The trained checkpoints of DiffusionGemma, and a numpy session on one without an export."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lopa.export.bundle_plan import BundleChoices, plan_from_checkpoint
from lopa.runtime.bundle.manifest import Manifest, Origin
from lopa.runtime.bundle.manifest_checks import contract_of
from lopa.runtime.contract import Floats
from lopa.runtime.sessions.host_session import HostSession
from lopa.runtime.sessions.numpy_canvas import NumpyCanvasForward
from lopa.runtime.sessions.prefix_cache import cache_shape_from_manifest

FOLDER = Path(__file__).parent / "reference" / "diffusion_gemma"
CHECKPOINTS = sorted(path.parent.name for path in FOLDER.glob("*/config.json"))


@cache
def canvas_model(name: str) -> tuple[Manifest, dict[str, Floats]]:
    """Return the manifest and the float32 weights of a checkpoint, as a bundle would have them."""
    plan = plan_from_checkpoint(FOLDER / name, Path("nowhere"), BundleChoices())
    source, weights = plan.source, dict[str, Floats]()
    for weight in source.planned:
        parts = []
        for part in weight.parts:
            values = source.stored[part.source].as_matrix().read().float().numpy()[part.first : part.first + part.rows]
            parts.append(values.T if weight.transposed else values)
        weights[weight.name] = (np.stack(parts) if len(parts) > 1 else parts[0]).reshape(weight.shape)
    sizes = source.config.dimensions
    manifest = Manifest(
        schema=3,
        contract=contract_of(sizes),
        architecture="diffusion-gemma",
        dialect="standard",
        dtype="float32",
        quantization=None,
        with_logits=True,
        prediction_shift=0,
        dimensions=sizes,
        special_tokens=source.tokenizer.special_tokens,
        decoding=plan.decoding,
        graph="model.onnx",
        weights="model.onnx.data",
        stages=[],
        tensors={},
        files=[],
        origin=Origin(checkpoint={}, adapter={}, tools={}),
        defaults=dict(plan.choices.defaults),
    )
    return manifest, weights


def numpy_session(name: str, manifest: Manifest | None = None) -> HostSession:
    """Return a numpy session over a checkpoint, by default with its own manifest."""
    own, weights = canvas_model(name)
    used = manifest or own
    forward, hidden = NumpyCanvasForward(weights, used), used.dimensions.hidden_size
    return HostSession(forward, "numpy", cache_shape_from_manifest(used), hidden_size=hidden)


def with_stops(manifest: Manifest, stops: list[int]) -> Manifest:
    """Return `manifest` with other tokens that end an answer; none changes nothing."""
    tokens = msgspec.structs.replace(manifest.special_tokens, eos=(stops or [1])[0], stops=stops[1:])
    return msgspec.structs.replace(manifest, special_tokens=tokens)


def changed_config(name: str, **changes: Any) -> dict[str, Any]:
    """Return config.json of a checkpoint with other entries in text_config; ... removes one."""
    config: dict[str, Any] = json.loads((FOLDER / name / "config.json").read_text())
    config["text_config"] = {k: v for k, v in (config["text_config"] | changes).items() if v is not ...}
    return config
