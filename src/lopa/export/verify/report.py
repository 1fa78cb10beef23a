"""Verification of a bundle, and of the checkpoint it was made from, with a report of errors.

torch and transformers are imported only if there is a checkpoint to compare with.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec

from lopa.export.checkpoint.folder import check_adapter_folder, check_checkpoint_folder
from lopa.export.extra import export_extra_needed
from lopa.export.progress import ProgressCallback, silent
from lopa.export.verify.canvas_check import (
    CanvasReference,
    NumpyCanvasReference,
    TransformersCanvasReference,
    canvas_network_from_checkpoint,
    differences_of_canvases,
)
from lopa.export.verify.differences import FLOAT16_SUMS, OutputError, tolerance_of
from lopa.export.verify.origin import check_origin
from lopa.export.verify.session_check import CachedReference, NumpyReference, Reference, Report, report_from_session
from lopa.export.verify.tokenizer_check import check_tokenizer
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.bundle.quantized_form import cpu_form
from lopa.runtime.device_families import find_device, parse_device, stages_of_device
from lopa.runtime.errors import BadInputError, CheckFailedError
from lopa.runtime.openvino.openvino_library import rounds_to_bfloat16
from lopa.runtime.sessions.onnxruntime_session import open_session as open_exact_session
from lopa.runtime.sessions.session import Session, open_session
from lopa.runtime.sessions.wrapped_session import TypedSession
from lopa.runtime.tensorrt.tensorrt_library import is_tensorrt
from lopa.runtime.tensorrt.tensorrt_session import engine_from_device, session_from_engine


def report_from_bundle(
    bundle: Bundle,
    *,
    checkpoint: Path | None = None,
    lora: Path | None = None,
    device: str = "cpu",
    progress: ProgressCallback = silent,
) -> Report:
    """Check the files of `bundle`, then compare its engine on `device` with every available reference.

    On ONNX Runtime all graphs of a bundle are compared. Outputs of all but the first have names such as cpu/entropy or
    portable/entropy. The references are numpy on the bundle's own weights and, with `checkpoint`, a network of
    transformers on the checkpoint merged with the adapter `lora`.

    The weights of a quantized bundle are compared with the checkpoint's. The network of transformers then gets the
    dequantized weights, which separates rounding from computing.

    Raises CheckFailedError for altered files, for another checkpoint, adapter or tokenizer than the bundle's, and when
    the engine fails. Errors beyond tolerance are only reported. Raises MissingBackendError if transformers is needed
    and absent. Raises BadInputError for a missing argument and for folders that are not a checkpoint or an adapter.
    """
    if checkpoint is None and lora is not None:
        raise BadInputError(
            "--lora without --checkpoint",
            expected="--checkpoint with the adapter's base model",
            remedy="add --checkpoint DIR",
        )
    if checkpoint is not None:
        check_checkpoint_folder(checkpoint)
    if lora is not None:
        check_adapter_folder(lora)
    progress("digests", 0, 0)
    _check_files(bundle)
    if bundle.manifest.dimensions.canvas is not None:
        return _report_of_canvases(bundle, checkpoint, lora, device, progress)
    references: list[Reference] = [NumpyReference(bundle)]
    weight_errors: tuple[OutputError, ...] = ()
    if checkpoint is not None:
        progress("digests of the checkpoint", 0, 0)
        check_origin(bundle.manifest.origin, checkpoint, lora)
        check_tokenizer(bundle, checkpoint)
        progress("loading the checkpoint", 0, 0)
        reference, weight_errors = _reference_from_checkpoint(bundle, checkpoint, lora)
        references.append(reference)
    graphs = _bundles_of_one_graph(bundle, device)
    if len(graphs) > 1:
        references = [CachedReference(reference) for reference in references]
    errors, cases = [*weight_errors], 0
    for name, one in graphs.items():
        stage = f"comparing the {name} graph" if name else "comparing"
        exact = _is_exact(one, device)
        judged = msgspec.structs.replace(one.manifest, quantization=None) if exact else one.manifest
        report = _report_from_graph(one, device, judged, references, stage, progress)
        errors += [replace(error, output=f"{name}/{error.output}" if name else error.output) for error in report.errors]
        cases += report.cases
    return Report(cases, tuple(errors))


def _report_of_canvases(
    bundle: Bundle, checkpoint: Path | None, lora: Path | None, device: str, progress: ProgressCallback
) -> Report:
    """Return the report of a bundle of contract 2."""
    references: list[CanvasReference] = [NumpyCanvasReference(bundle)]
    errors: list[OutputError] = []
    if checkpoint is not None:
        with export_extra_needed("comparing with the checkpoint"):
            from lopa.export.verify.quantized_weights import dequantize, errors_of_weights
        check_origin(bundle.manifest.origin, checkpoint, lora)
        check_tokenizer(bundle, checkpoint)
        progress("loading the checkpoint", 0, 0)
        network = canvas_network_from_checkpoint(checkpoint, lora)
        quantized = bundle.manifest.quantization is not None
        errors += [each for each in errors_of_weights(bundle, network) if quantized or not each.ok]
        if quantized:
            dequantize(bundle, network)
        references.append(TransformersCanvasReference(network))
    cases = 0
    for name, one in _bundles_of_one_graph(bundle, device).items():
        session, stage = open_session(one, device), f"comparing the {name} graph" if name else "comparing"
        with closing(session):
            count, found = differences_of_canvases(session, one.manifest, references, progress, stage)
        tolerance = tolerance_of(one.manifest)
        prefix, cases = f"{name}/" if name else "", cases + count
        errors += [
            OutputError(reference, f"{prefix}{output}", difference, tolerance.limit, by_rms=tolerance.by_rms)
            for reference, output, difference in found
        ]
    return Report(cases, tuple(errors))


def _bundles_of_one_graph(bundle: Bundle, device: str) -> dict[str, Bundle]:
    """Return the bundle for each graph that the device can run, by name.

    The name of the first is empty. A CPU runs the twin of a graph and other devices run the graph itself, so both are
    checked.
    """
    families = [parse_device(stage).family.name for stage in stages_of_device(device)]
    if "cpu" not in families:
        return {"": bundle}  # this device compiles the graph
    first, *others = bundle.dialects
    bundles = {"": bundle.with_dialect(first).with_twins()}
    if bundle.twin("cpu") is not None:
        bundles["cpu"] = bundle.with_dialect(first).with_twins("packed")
    form = cpu_form(bundle)
    if form != "packed":
        bundles[f"cpu-{form}"] = bundle.with_dialect(first).with_twins(form)
    if len(families) == 1:  # the others are graphs of the whole model, which a pipeline does not run
        bundles |= {dialect: bundle.with_dialect(dialect) for dialect in others}
    return bundles


def _is_exact(bundle: Bundle, device: str) -> bool:
    """Return True if the device cpu leaves activations of a quantized bundle unrounded, so that only weights are.

    This holds for graphs without a twin, unless their nodes round activations as in int8 bundles.
    """
    is_cpu = stages_of_device(device) == [device] and parse_device(device).family.name == "cpu"
    manifest = bundle.manifest
    if not is_cpu or manifest.quantization is None or any(each.provider == "cpu" for each in manifest.twins):
        return False
    return manifest.dialect == "portable" or manifest.quantization.activation == "none"


def _report_from_graph(
    bundle: Bundle,
    device: str,
    judged: Manifest,
    references: Sequence[Reference],
    stage: str,
    progress: ProgressCallback,
) -> Report:
    session = _session_to_check(bundle, device)
    if session is None:
        return Report(0, ())
    session = TypedSession(session)
    try:
        return report_from_session(
            session,
            judged,
            references,
            progress,
            stage,
            rounding=_rounding(bundle, session.device),
        )
    finally:
        session.close()


def _rounding(bundle: Bundle, device: str) -> str | None:
    """Return the rounding of a device that differs from the bundle's type, as a key of TOLERANCES."""
    stages = [found for stage in stages_of_device(device) if (found := find_device(stage))]
    if rounds_to_bfloat16(device) or (bundle.manifest.quantization is None and any(each.uses_tf32 for each in stages)):
        return "bfloat16"  # TF32 rounds less, but more than float16's tolerance
    family = stages[0].family.name if len(stages) == 1 else None
    if family == "webgpu" and bundle.manifest.dtype == "float16":
        return FLOAT16_SUMS
    return "float16" if family == "qnn" else None


def _session_to_check(bundle: Bundle, device: str) -> Session | None:
    """Open a session as open_session does, for TensorRT also with an unverified engine.

    Returns None for an engine whose build made products 8-bit, because the references compute in floating point.
    """
    if _is_exact(bundle, device):
        return open_exact_session(bundle, device, threads=None, exact=True)
    if not is_tensorrt(device):
        return open_session(bundle, device)
    found = engine_from_device(bundle, device)
    if found.engine.flags.products != "graph" and not bundle.manifest.is_fp8:
        return None
    return session_from_engine(bundle, device, found)


def _check_files(bundle: Bundle) -> None:
    altered = bundle.altered_files()
    if altered:
        raise CheckFailedError(
            f"{', '.join(altered)} in {bundle.path} changed since the export: SHA-256 differs from the manifest",
            expected="the files that the export wrote",
            remedy="copy the bundle again, or export the checkpoint again",
        )


def _reference_from_checkpoint(
    bundle: Bundle, checkpoint: Path, lora: Path | None
) -> tuple[Reference, tuple[OutputError, ...]]:
    """Return transformers' network and the errors of the weights, of unquantized ones only those beyond tolerance."""
    with export_extra_needed("comparing with the checkpoint"):
        from lopa.export.verify.quantized_weights import dequantize, errors_of_weights
        from lopa.export.verify.reference_model import TransformersReference, network_from_checkpoint
    manifest = bundle.manifest
    network = network_from_checkpoint(manifest.dimensions, manifest.architecture, checkpoint, lora)
    errors: tuple[OutputError, ...] = errors_of_weights(bundle, network)
    rounded: set[int] = set()
    if manifest.quantization is not None:
        rounded = dequantize(bundle, network)
    else:  # outputs show the others
        errors = tuple(error for error in errors if not error.ok)
    return TransformersReference(network, rounded), errors
