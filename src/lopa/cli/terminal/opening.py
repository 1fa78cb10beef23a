"""Status on standard error while a bundle opens. A model of 7 billion parameters may take a minute."""

from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from functools import partial
from pathlib import Path
from typing import Any

from lopa.bench.progress import Progress, bytes_text
from lopa.cli.program.background_call import start_call, wait_for_call
from lopa.cli.program.verbosity import quiet
from lopa.runtime.bundle import Bundle
from lopa.runtime.decoder import Decoder
from lopa.runtime.device_families import on_mpi

_SHORT_SECONDS = 0.3
"""Seconds after which a terminal shows the status. A small bundle is open before."""
_LONG_SECONDS = 2.0
"""Seconds after which a line is printed if standard error is not a terminal."""


def open_decoder(path: Path, devices: Sequence[str], **options: Any) -> Decoder:
    """Return `Decoder.open(path, devices, **options)`, and show what is being opened and for how long.

    A terminal shows a clock until the decoder is open. Without a terminal, a line is printed if that takes long. With
    --quiet nothing is shown. A signal raises its exception at once, while the bundle continues to open on another
    thread. Raises the errors of Decoder.open.
    """
    if on_mpi(devices):  # all MPI calls stay on the main thread
        return Decoder.open(path, devices, **options)
    call = start_call(partial(Decoder.open, path, devices, **options))
    if not wait([call], _SHORT_SECONDS).done:
        with Progress(quiet=quiet(), transient=True) as progress:
            if progress.on_terminal or not wait([call], _LONG_SECONDS - _SHORT_SECONDS).done:
                progress.stage(opening_text(Bundle.open(path), devices))
            wait_for_call(call)
    return call.result()


def opening_text(bundle: Bundle, devices: Sequence[str]) -> str:
    """Return what is being opened, with the size of its weights, e.g. "opening out/bundle on cpu (int4, 4.40 GB)"."""
    manifest = bundle.manifest
    kind = manifest.dtype if manifest.quantization is None else manifest.quantization.kind
    size = sum(record.size for record in manifest.files if record.path == manifest.weights)
    return f"opening {bundle.path} on {', '.join(devices)} ({kind}, {bytes_text(size)})"


def defaults_text(defaults: Mapping[str, Any]) -> str:
    """Return names and values on one line, separated by commas, or "as exported" if there are none."""
    return ", ".join(f"{name} {value}" for name, value in defaults.items()) or "as exported"
