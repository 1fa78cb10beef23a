"""The gate of a TensorRT engine, for lopa-export verify: held against another device, then said to be verified."""

from collections.abc import Callable

from lopa.bench.eval_set import eval_set_from_jsonl
from lopa.export.verify.token_gate import Agreement, agreement_of_sessions, gate_tolerance
from lopa.runtime.bundle import Bundle
from lopa.runtime.decoder import Decoder
from lopa.runtime.sessions.session import open_session
from lopa.runtime.tensorrt.manifest import StoredTensorRTEngine
from lopa.runtime.tensorrt.session import session_from_engine
from lopa.runtime.text.prompt_ids import ids_from_prompt
from lopa.runtime.text.tokenizer import Tokenizer
from lopa.tiny import EVAL

_PROMPTS = 2
"""Of each kind."""
_NEW_TOKENS = 64


def default_reference(bundle: Bundle, device: str) -> str:
    """Where ONNX Runtime can run the bundle: the CPU, or in bfloat16, for which that has no operators, the same GPU."""
    return "cpu" if bundle.manifest.dtype != "bfloat16" else f"cuda:{device.split(':', 1)[1]}"


def agreement_of_engine(
    bundle: Bundle, device: str, found: StoredTensorRTEngine, against: str, progress: Callable[[int, int], None]
) -> Agreement:
    """Hold the engine on "tensorrt:N" against the device `against`, in every one of its shapes.

    Embedded prompts are decoded with the bundle's defaults, with the full and with the block-causal window.
    """
    engine, manifest = found.engine, bundle.manifest
    tokenizer = Tokenizer.open(bundle)
    reference = open_session(bundle, against)
    try:
        candidate = session_from_engine(bundle, device, found)
        try:
            decoder = Decoder(bundle, reference, tokenizer)
            configs = [decoder.config(max_new_tokens=_NEW_TOKENS, window=window) for window in ("full", "block_causal")]
            items = eval_set_from_jsonl(EVAL, limit=_PROMPTS)
            prompts = [ids_from_prompt(item.prompt, configs[0], tokenizer, manifest) for item in items]
            shapes = [*engine.gears, engine.prefill.least, engine.prefill.most]
            tolerance = gate_tolerance(manifest, engine.flags.products)
            return agreement_of_sessions(reference, candidate, manifest, prompts, configs, shapes, tolerance, progress)
        finally:
            candidate.close()
    finally:
        reference.close()
