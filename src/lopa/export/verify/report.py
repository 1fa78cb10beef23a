"""Bundle (and the checkpoint it was made from) in, report of errors out. Does not print.

Imports torch and transformers only when there is a checkpoint to compare with.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from lopa.export.checkpoint.folder import check_adapter_folder, check_checkpoint_folder
from lopa.export.extra import export_extra_needed
from lopa.export.progress import Progress, silent
from lopa.export.verify.differences import OutputError
from lopa.export.verify.origin import check_origin
from lopa.export.verify.session_check import NumpyReference, Reference, RememberedReference, Report, report_from_session
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.int4_form import unpacked_graph
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.device_families import parse_device, stages_of_device
from lopa.runtime.errors import BadInputError, CheckFailedError
from lopa.runtime.openvino.device import rounds_to_bfloat16
from lopa.runtime.sessions.session import Session, open_session
from lopa.runtime.tensorrt.library import is_tensorrt
from lopa.runtime.tensorrt.session import engine_from_device, session_from_engine

UNPACKED = "cpu-unpacked"
"""What outputs of the graph with int4 matrices unpacked are called by."""


def report_from_bundle(
    bundle: Bundle,
    *,
    checkpoint: Path | None = None,
    lora: Path | None = None,
    device: str = "cpu",
    progress: Progress = silent,
    before_engine: Callable[[], None] | None = None,
) -> Report:
    """Check the files of `bundle`, then compare its engine on `device` with every reference there is.

    A bundle of several graphs has all of them compared where the device runs graphs as they are (ONNX Runtime);
    outputs of all but the first are called e.g. cpu/entropy or portable/entropy. The references are numpy on the
    bundle's own weights and, with `checkpoint`, a network of transformers on the checkpoint merged with the adapter
    `lora`. Of a quantized bundle the weights themselves are compared with the checkpoint's, and that network takes what
    the bundle's integers stand for, so that rounding weights and computing are judged apart. `before_engine` is called
    when the files are known to be the right ones, before an engine is opened.

    Raises CheckFailedError when files were altered, when checkpoint or adapter are others than the bundle was made
    from, or when the engine fails; errors beyond tolerance are in the report. Raises MissingBackendError when
    transformers is needed and absent, BadInputError for a missing argument and for folders that are no checkpoint and
    no adapter.
    """
    if checkpoint is None and lora is not None:
        raise BadInputError(
            "--lora without --checkpoint", expected="the adapter's base too", remedy="add --checkpoint DIR"
        )
    if checkpoint is not None:
        check_checkpoint_folder(checkpoint)
    if lora is not None:
        check_adapter_folder(lora)
    progress("digests", 0, 0)
    _check_files(bundle)
    references: list[Reference] = [NumpyReference(bundle)]
    of_weights: tuple[OutputError, ...] = ()
    if checkpoint is not None:
        progress("digests of the checkpoint", 0, 0)
        check_origin(bundle.manifest.origin, checkpoint, lora)
        progress("loading the checkpoint", 0, 0)
        reference, of_weights = _reference_from_checkpoint(bundle, checkpoint, lora)
        references.append(reference)
    if before_engine is not None:
        before_engine()
    graphs = _bundles_of_one_graph(bundle, device)
    if len(graphs) > 1:
        references = [RememberedReference(reference) for reference in references]
    errors, cases = [*of_weights], 0
    for name, one in graphs.items():
        stage = f"comparing the {name} graph" if name else "comparing"
        judged = _as_of_int8(one.manifest) if name == UNPACKED else one.manifest
        report = _report_from_graph(one, device, judged, references, stage, progress)
        errors += [replace(error, output=f"{name}/{error.output}" if name else error.output) for error in report.errors]
        cases += report.cases
    return Report(cases, tuple(errors))


def _bundles_of_one_graph(bundle: Bundle, device: str) -> dict[str, Bundle]:
    """The bundle for each of its graphs that the device can be made to run, by name; its first one has none.

    A CPU runs a graph's twin in the graph's place, but others run the graph: both are checked.
    """
    families = [parse_device(stage).family.name for stage in stages_of_device(device)]
    if "cpu" not in families:
        return {"": bundle}  # a device that makes its own of a graph
    first, *others = bundle.dialects
    bundles = {"": bundle.of_dialect(first).without_cpu_graphs()}
    if bundle.manifest.cpu_graphs:
        bundles["cpu"] = bundle.of_dialect(first).with_cpu_graphs(unpacked=False)
    if unpacked_graph(bundle) is not None:
        bundles[UNPACKED] = bundle.of_dialect(first).with_cpu_graphs(unpacked=True)
    if len(families) == 1:  # others are graphs of the whole model, of which a pipeline runs none
        bundles |= {dialect: bundle.of_dialect(dialect) for dialect in others}
    return bundles


def _as_of_int8(manifest: Manifest) -> Manifest:
    """For its tolerance: products of int4 matrices unpacked round the other factor as those of int8 do."""
    quantization = manifest.quantization and msgspec.structs.replace(manifest.quantization, kind="int8")
    return msgspec.structs.replace(manifest, quantization=quantization)


def _report_from_graph(
    bundle: Bundle, device: str, judged: Manifest, references: Sequence[Reference], stage: str, progress: Progress
) -> Report:
    session = _session_to_check(bundle, device)
    if session is None:
        return Report(0, ())
    try:
        return report_from_session(
            session,
            judged,
            references,
            progress,
            stage,
            rounded_to="bfloat16" if rounds_to_bfloat16(session.device) else None,
        )
    finally:
        session.close()


def _session_to_check(bundle: Bundle, device: str) -> Session | None:
    """As open_session; of TensorRT an engine that was not verified yet too.

    None for an engine whose products were made 8-bit ones when it was built: the references compute in floats.
    """
    if not is_tensorrt(device):
        return open_session(bundle, device)
    found = engine_from_device(bundle, device)
    return session_from_engine(bundle, device, found) if found.engine.flags.products == "graph" else None


def _check_files(bundle: Bundle) -> None:
    altered = bundle.altered_files()
    if altered:
        raise CheckFailedError(
            f"{', '.join(altered)} in {bundle.path} changed since the export: another sha256 than the manifest's",
            expected="the files that the export wrote",
            remedy="copy the bundle again, or export the checkpoint again",
        )


def _reference_from_checkpoint(
    bundle: Bundle, checkpoint: Path, lora: Path | None
) -> tuple[Reference, tuple[OutputError, ...]]:
    """Transformers' network, and how far the weights are from the checkpoint's: empty if they are not quantized."""
    with export_extra_needed("comparing with the checkpoint"):
        from lopa.export.verify.quantized_weights import dequantized_weights, errors_of_weights
        from lopa.export.verify.reference_model import reference_from_weights, weights_from_origin
    weights = weights_from_origin(bundle.manifest, checkpoint, lora)
    errors: tuple[OutputError, ...] = ()
    if bundle.manifest.quantization is not None:
        errors = errors_of_weights(bundle, weights)
        weights.update(dequantized_weights(bundle))
    return reference_from_weights(bundle.manifest, checkpoint, weights), errors
