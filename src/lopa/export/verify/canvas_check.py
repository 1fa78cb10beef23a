"""Comparison of an engine of contract 2 with references: prompts around the sliding window, and steps of canvases.

A case has three forwards. The first encodes a prompt and runs the first step of a canvas. The second reads the soft
embeddings of the first. The third encodes that canvas and runs the first step of the next one.
"""

import copy
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np

from lopa.export.extra import export_extra_needed
from lopa.export.progress import ProgressCallback
from lopa.export.verify.differences import Difference, difference_of, differences_of_statistics
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import DRAWN_IDS, Float32, Int64, Statistics
from lopa.runtime.requests.running_loop import batch_from_rows
from lopa.runtime.sessions.host_session import HostSession
from lopa.runtime.sessions.numpy_session import numpy_forward_from_bundle
from lopa.runtime.sessions.prefix_cache import cache_shape_from_manifest
from lopa.runtime.sessions.session import Session, next_request_number
from lopa.runtime.state.canvas_rows import rows_of_canvas

_TEMPERATURES = (1.0, 0.6, 0.8)
"""Temperature of each step."""


@dataclass(frozen=True, eq=False)
class CanvasCase:
    """Token ids of a prompt [P] and of three canvases [3, C], and the numbers by which tokens are drawn [3, C]."""

    prompt: Int64
    canvases: Int64
    uniform: Float32


class CanvasReference(Protocol):
    """Computation of a case's logits."""

    @property
    def name(self) -> str:
        """Name in reports."""

    def logits(self, case: CanvasCase) -> Float32:
        """Return the logits of each step, [3, C, V], before any temperature."""


def canvas_cases(manifest: Manifest) -> Iterator[CanvasCase]:
    """Yield prompts of one token and more, and of lengths around the sliding window and twice of it."""
    sizes, canvas = manifest.dimensions, manifest.dimensions.canvas
    assert canvas is not None
    chance, window, length = np.random.default_rng(0), canvas.sliding_window, canvas.canvas_length
    for prompt in sorted({1, 7, *range(max(2, window - 2), window + 2), 2 * window + 3}):
        if prompt + 2 * length <= sizes.max_positions:
            ids = chance.integers(0, sizes.vocab_size, prompt)
            canvases = chance.integers(0, sizes.vocab_size, (len(_TEMPERATURES), length))
            uniform = chance.integers(0, 2**24, canvases.shape) / np.float32(2**24)
            yield CanvasCase(ids, canvases, uniform.astype(np.float32))


def statistics_of_case(session: Session, manifest: Manifest, case: CanvasCase) -> list[Statistics]:
    """Return the statistics [C, ..] of each step."""
    canvas, request = manifest.dimensions.canvas, next_request_number()
    assert canvas is not None
    found, cached, nothing = [], 0, case.prompt[:0]
    due = (case.prompt, nothing, case.canvases[1])
    for step, (ids, temperature) in enumerate(zip(due, _TEMPERATURES, strict=True)):
        rows = rows_of_canvas(
            ids,
            case.canvases[step : step + 1],
            cached,
            canvas.sliding_window,
            case.uniform[step],
            soft_first=0 if step == 1 else None,
            temperature=temperature,
        )
        ticket = session.start(batch_from_rows([rows], [request], [temperature]))
        found.append(session.wait(ticket))
        if len(ids):
            session.commit(ticket, request, 0, len(ids))
        session.release(ticket)
        cached += len(ids)
    session.free(request)
    return found


class NumpyCanvasReference:
    """Reference with numpy on the bundle's weights."""

    name = "numpy"

    def __init__(self, bundle: Bundle) -> None:
        self._manifest = msgspec.structs.replace(bundle.manifest, dtype="float32", with_logits=True)
        shape, hidden = cache_shape_from_manifest(self._manifest), self._manifest.dimensions.hidden_size
        self._session = HostSession(
            numpy_forward_from_bundle(bundle, self._manifest), "numpy", shape, hidden_size=hidden
        )

    def logits(self, case: CanvasCase) -> Float32:
        """Return the logits of each step."""
        found = statistics_of_case(self._session, self._manifest, case)
        return np.stack([each.logits for each in found if each.logits is not None])


class TransformersCanvasReference:
    """Reference with the network of transformers and its own cache."""

    name = "transformers"

    def __init__(self, network: Any) -> None:
        self._network = network

    def logits(self, case: CanvasCase) -> Float32:
        """Return the logits of each step."""
        import torch
        from transformers import DynamicCache

        network, cache = self._network, DynamicCache(config=self._network.config.text_config)
        found: list[Any] = []
        with torch.no_grad():
            for step, due in enumerate((case.prompt, None, case.canvases[1])):
                if due is not None:
                    network.model.encoder(torch.from_numpy(due)[None], past_key_values=cache)
                before = found[0] / _TEMPERATURES[0] if step == 1 else None
                canvas = torch.from_numpy(case.canvases[step])[None]
                found.append(
                    network(decoder_input_ids=canvas, past_key_values=cache, self_conditioning_logits=before).logits
                )
        return np.concatenate([each.numpy() for each in found])


def canvas_network_from_checkpoint(checkpoint: Path, lora: Path | None = None) -> Any:
    """Return transformers' float32 network of a checkpoint. With `lora`, peft merges each of its two ways apart.

    Weights that are equal then are shared again.
    """
    import torch
    from transformers import DiffusionGemmaForBlockDiffusion

    network = DiffusionGemmaForBlockDiffusion.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    )
    if lora is not None:
        with export_extra_needed("merging the adapter"):
            from peft import PeftModel
        encoder, decoder = network.model.encoder.language_model, network.model.decoder
        encoder.layers = copy.deepcopy(encoder.layers)
        with warnings.catch_warnings(action="ignore"):
            network = PeftModel.from_pretrained(network, lora, torch_device="cpu").merge_and_unload()
        for own, other in zip(decoder.layers.parameters(), encoder.layers.parameters(), strict=True):
            if torch.equal(own, other):
                other.data = own.data
    return network.requires_grad_(False).eval()


def differences_of_canvases(
    session: Session,
    manifest: Manifest,
    references: Sequence[CanvasReference],
    progress: ProgressCallback,
    stage: str,
) -> tuple[int, list[tuple[str, str, Difference]]]:
    """Return the number of cases, and by reference and output the differences of all cases."""
    cases = list(canvas_cases(manifest))
    worst: dict[tuple[str, str], Difference] = {}
    for number, case in enumerate(cases):
        progress(stage, number, len(cases))
        found = statistics_of_case(session, manifest, case)
        for reference in references:
            for step, logits in enumerate(reference.logits(case)):
                one = found[step].mapped(lambda array: array[None, None])
                temperature = np.array(_TEMPERATURES[step : step + 1], np.float32)
                own = differences_of_statistics(one, logits[None, None], temperature)
                own[DRAWN_IDS] = _difference_of_draws(found[step], logits / temperature, case.uniform[step])
                for output, difference in own.items():
                    key = reference.name, output
                    worst[key] = worst[key].merged_with(difference) if key in worst else difference
    progress(stage, len(cases), len(cases))
    return len(cases), [(*key, difference) for key, difference in worst.items()]


def _difference_of_draws(found: Statistics, tempered: Float32, uniform: Float32) -> Difference:
    """Return how far the uniform numbers are outside of the drawn tokens' intervals of the cumulative distribution."""
    assert found.drawn_ids is not None
    weights = np.exp(tempered.astype(np.float64) - tempered.max(axis=-1, keepdims=True))
    ends = np.cumsum(weights / weights.sum(axis=-1, keepdims=True), axis=-1)
    end = np.take_along_axis(ends, found.drawn_ids[:, None], axis=-1)[:, 0]
    start = end - np.take_along_axis(weights / weights.sum(axis=-1, keepdims=True), found.drawn_ids[:, None], -1)[:, 0]
    outside = np.maximum(0, np.maximum(start - uniform, uniform - end))
    return difference_of(outside, np.zeros_like(outside), least_magnitude=1.0)
