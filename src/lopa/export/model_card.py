"""The model card of a bundle for the Hugging Face Hub: what it is, what it came from, and how to run it.

The card ends in a marker with its own digest, so that a later push recognizes a card that a person changed.
"""

import hashlib
import re
from collections.abc import Mapping

from lopa.runtime.bundle.manifest import HubSource, Manifest

_MARKER = re.compile(r"<!-- lopa-export card (\w{64}) -->\s*\Z")
_UNITS = 1e6


def card_text(manifest: Manifest, repository: str, license_id: str | None) -> str:
    """Return the card without its metadata and marker."""
    sizes = manifest.dimensions
    rows = {
        "architecture": f"{manifest.architecture}, {sizes.layers} layers of {sizes.hidden_size}",
        "weights": _weights(manifest),
        "graphs": ", ".join([manifest.dialect, *([] if manifest.portable_graph is None else ["portable"])]),
        "files": f"{len(manifest.files)}, {sum(each.size for each in manifest.files) / _UNITS:,.1f} MB",
        "source of the weights": _source(manifest.origin.checkpoint_hub, manifest.origin.checkpoint),
        "adapter": _source(manifest.origin.adapter_hub, manifest.origin.adapter),
        "licence": license_id or "not stated: see the source of the weights",
        "made with": ", ".join(f"{name} {version}" for name, version in manifest.origin.tools.items()),
    }
    table = "\n".join(f"| {name} | {text} |" for name, text in rows.items())
    return "\n\n".join(
        filter(
            None,
            [
                f"# {repository.rpartition('/')[2]}",
                "A diffusion language model as ONNX graph, weights and tokenizer, for "
                "lopa-export's runtime. It decodes with LoPA (arXiv 2512.16229) without torch.",
                f"| property | value |\n|---|---|\n{table}",
                _quantization(manifest),
                _presets(manifest),
                "## Use\n\n```sh\n"
                f'lopa-export generate hf://{repository} "PROMPT"\nlopa-export serve hf://{repository}\n```\n\n'
                f'```python\nfrom lopa import Decoder\n\nwith Decoder.open("hf://{repository}") as decoder:\n'
                '    print(decoder.generate("PROMPT").text)\n```',
                "## Files\n\n| file | bytes | SHA-256 |\n|---|---|---|\n"
                + "\n".join(f"| {each.path} | {each.size:,} | {each.sha256} |" for each in manifest.files),
            ],
        )
    )


def with_marker(text: str) -> str:
    """Return a whole card with the marker at its end."""
    return f"{text.rstrip()}\n\n<!-- lopa-export card {_digest(text)} -->\n"


def is_unchanged(card: str) -> bool:
    """Return True if a card has a marker, and its text is what the marker says."""
    found = _MARKER.search(card)
    return found is not None and found[1] == _digest(card[: found.start()])


def _digest(text: str) -> str:
    return hashlib.sha256(text.rstrip().encode()).hexdigest()


def _weights(manifest: Manifest) -> str:
    if manifest.quantization is None:
        return manifest.dtype
    head = "" if manifest.quantization.head else ", without the head"
    return f"{manifest.quantization.kind} matrices{head}, the rest {manifest.dtype}"


def _source(hub: HubSource | None, digests: Mapping[str, str]) -> str:
    if not digests:
        return "none"
    if hub is not None:
        return f"[{hub.repository}](https://huggingface.co/{hub.repository}/tree/{hub.commit}) at {hub.commit}"
    weights = [f"{name} {digest[:16]}" for name, digest in digests.items() if name.endswith(".safetensors")]
    return f"a local folder with SHA-256 {', '.join(weights[:4])}" + (" and more" if len(weights) > 4 else "")


def _quantization(manifest: Manifest) -> str:
    found = manifest.quantization
    if found is None:
        return ""
    integers = [name for name, each in manifest.tensors.items() if each.is_quantized]
    method = "none" if found.calibration is None else f"{found.calibration.method}, {found.calibration.rows:,} tokens"
    rows = {
        "matrices": f"{len(integers)} as {found.kind}",
        "scales": "one an output" if found.block is None else f"one an output and {found.block} inputs",
        "activations": "not rounded" if found.activation == "none" else f"{found.kind} for each row",
        "excluded": ", ".join(found.excluded) or "none",
        "calibration": method,
    }
    table = "\n".join(f"| {name} | {text} |" for name, text in rows.items())
    return f"## Quantization\n\n| part | value |\n|---|---|\n{table}"


def _presets(manifest: Manifest) -> str:
    if not manifest.presets:
        return ""
    rows = "\n".join(
        f"| {name} | {', '.join(each.devices)} | {each.measured} |" for name, each in manifest.presets.items()
    )
    return f"## Presets\n\nMeasured by `lopa-export tune`.\n\n| preset | device | measured |\n|---|---|---|\n{rows}"
