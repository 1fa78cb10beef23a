"""Decodes of transformers' networks with random weights, in our session and in transformers."""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import torch
from tests.export.layer_kinds import LayerKind, as_in_bundle, weights_of_network
from tests.lone_decode import LoneDecode
from tests.params import params_of

from lopa.runtime.bundle.manifest import Manifest, SpecialTokens
from lopa.runtime.decoding.step import Step
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.sessions.host_session import HostSession
from lopa.runtime.sessions.numpy_session import NumpyForward
from lopa.runtime.sessions.prefix_cache import cache_shape_from_manifest

END, MASK = 0, 2


class SmallNetwork:
    """A network in transformers and in our session."""

    def __init__(self, kind: LayerKind, manifest: Manifest, *, sharpness: float) -> None:
        """Make a random network. `manifest` may be any bundle's. Logits are multiplied by `sharpness`, for
        certainty."""
        network = kind.network(torch.float32)
        with torch.no_grad():
            network.lm_head.weight.mul_(sharpness)
            network.lm_head.weight[MASK] = 0  # no trained network proposes it
        network.config._attn_implementation = "eager"  # eager attention adds the given mask
        self.weights = {
            name: np.ascontiguousarray(weight.detach().numpy())
            for name, weight in as_in_bundle(weights_of_network(network)).items()
        }
        self.network: Any = network.double()
        self.manifest = msgspec.structs.replace(
            manifest,
            architecture="a-test",
            prediction_shift=0,
            dimensions=kind.dimensions,
            special_tokens=SpecialTokens(mask=MASK, eos=END, pad=END, bos=None),
        )

    def session(self) -> HostSession:
        forward = NumpyForward(self.weights, self.manifest)
        return HostSession(forward, "numpy", cache_shape_from_manifest(self.manifest))

    def decode(
        self, prompt: list[int], config: GenerationConfig, on_step: Callable[[LoneDecode, Step], None] | None = None
    ) -> tuple[list[int], list[Step]]:
        """Return the answer, up to an end of text, and the steps. `on_step` gets the decode and each step."""
        decoding = LoneDecode(self.session(), np.array(prompt), params_of(config), self.manifest)
        steps = []
        while decoding.stop_reason is None:
            steps.append(decoding.step())
            if on_step is not None:
                on_step(decoding, steps[-1])
        return decoding.answer.committed.tolist(), steps
