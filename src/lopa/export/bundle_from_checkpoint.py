"""Export of a checkpoint, with or without an adapter, to a bundle.

Decoding, verification and engines are in other modules.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import onnx_ir as ir

from lopa.export.bundle_plan import GRAPH_NAMES, BundleChoices, BundlePlan, plan_from_checkpoint
from lopa.export.checkpoint.auto_tokenizer import check_tokenizer_class
from lopa.export.checkpoint.tokenizer_files import TOKENIZER_CONFIG_NAME, TOKENIZER_NAME
from lopa.export.cpu_graph.twin import twins_for_cpu
from lopa.export.cuda_graph.twin import twin_for_cuda
from lopa.export.graph.expert_forms import with_expert_operators
from lopa.export.graph.plugin_passes import plugins_of, with_plugins
from lopa.export.graph.portable_lint import check_portable
from lopa.export.graph.rotary_inputs import with_rotary_inputs
from lopa.export.graph.torch_graph import graph_from_dimensions
from lopa.export.graph.webgpu_pass import twin_for_webgpu
from lopa.export.progress import ProgressCallback, silent
from lopa.export.source import origin_of_source
from lopa.export.staging import staged_folder
from lopa.export.weights.calibration import NetworkCalibration
from lopa.export.weights.calibration_windows import CalibrationSet, calibration_set
from lopa.export.weights.digests import digests_in_background
from lopa.export.weights.plan import Dtype
from lopa.export.weights.quantization import QuantizationChoice
from lopa.export.weights.writer import write_weights
from lopa.runtime.bundle import Bundle, sha256_of_file
from lopa.runtime.bundle.manifest import (
    MANIFEST_NAME,
    SCHEMA_VERSION,
    Dialect,
    FileRecord,
    FusedTensor,
    GraphTwin,
    Manifest,
    Origin,
    Stage,
    TwinForm,
)
from lopa.runtime.bundle.manifest_checks import contract_of, manifest_from_json
from lopa.runtime.bundle.record import json_from_record

WEIGHTS_NAME = "model.onnx.data"
_TwinKey = tuple[Literal["cpu", "webgpu", "cuda"], TwinForm]
_OVERHEAD_BYTES = 1 << 26
"""Upper bound on the bytes of all files except the weights."""


def bundle_from_checkpoint(
    checkpoint: Path,
    destination: Path,
    *,
    lora: Path | None = None,
    family: str | None = None,
    dtype: Dtype = "float32",
    quantization: QuantizationChoice | None = None,
    dialects: Sequence[Dialect] = ("standard",),
    rotary_inputs: bool | None = None,
    with_logits: bool = False,
    stages: int = 1,
    plugins: bool = False,
    defaults: Mapping[str, Any] | None = None,
    chat_template: Path | None = None,
    overwrite: bool = False,
    progress: ProgressCallback | None = None,
) -> Bundle:
    """Export the folder `checkpoint`, merged with the adapter folder `lora`, to the new folder `destination`.

    `family` is a name in lopa.export.families, for checkpoints that do not name their family. An autoregressive
    checkpoint has the same layers. BundleChoices describes the other options. Raises the errors of plan_from_checkpoint
    and bundle_from_plan.
    """
    choices = BundleChoices(
        dtype=dtype,
        quantization=quantization,
        dialects=dialects,
        rotary_inputs=rotary_inputs,
        with_logits=with_logits,
        stages=stages,
        plugins=plugins,
        defaults=defaults or {},
        chat_template=chat_template,
    )
    report = progress or silent
    report("reading the checkpoint", 0, 0)
    plan = plan_from_checkpoint(checkpoint, destination, choices, lora=lora, family=family, overwrite=overwrite)
    for warning in plan.source.warnings:
        report(warning, 0, 0)
    return bundle_from_plan(plan, report)


def bundle_from_plan(plan: BundlePlan, report: ProgressCallback = silent) -> Bundle:
    """Write the bundle of `plan`. Graphs get twins for the providers of ONNX Runtime that need other operators.

    Raises BadInputError for values that the bundle cannot hold, for a tokenizer that transformers reads differently,
    and for a destination that cannot be written. Raises CheckFailedError for a portable graph that breaks its dialect's
    rules. After an error nothing is left behind, and a bundle to be overwritten is unchanged.
    """
    source, total = plan.source, plan.weights_size
    check_tokenizer_class(source.checkpoint, source.tokenizer.tokenizer)  # not in the plan: it imports transformers
    if source.tokenizer.assumed_mask:
        mask = source.tokenizer.special_tokens.mask
        report(f"no file names the mask token: using {mask}, the default of {source.config.family.model_names}", 0, 0)
    for note in source.tokenizer.notes:
        report(note, 0, 0)
    with (
        staged_folder(plan.destination, overwrite=plan.overwrite, needed_bytes=total + _OVERHEAD_BYTES) as folder,
        digests_in_background([*source.adapter_files, *source.checkpoint_files]) as digests,
    ):
        # Weights are written first, so that likely errors, such as bad values or a full disk, show early.
        calibration = _calibration_set(plan)
        weights = write_weights(
            folder / WEIGHTS_NAME,
            plan.weights,
            plan.records,
            source.stored,
            source.adapter,
            lambda done: report("writing weights", done, total),
            None if calibration is None else partial(NetworkCalibration, source.config.dimensions, calibration.windows),
        )
        functions, twins = _write_graphs(folder, plan, report)
        (folder / TOKENIZER_NAME).write_bytes(source.tokenizer.tokenizer)
        (folder / TOKENIZER_CONFIG_NAME).write_bytes(source.tokenizer.tokenizer_config)
        names = [
            *(graph.name for graph in plan.graphs),
            *(twin.graph for twin in twins),
            TOKENIZER_NAME,
            TOKENIZER_CONFIG_NAME,
        ]
        files = [weights, *(_file_record(folder / name) for name in names)]
        report("hashing the source", 0, 0)
        origin = msgspec.structs.replace(
            origin_of_source(source, digests.result()),
            checkpoint_hub=plan.choices.checkpoint_hub,
            adapter_hub=plan.choices.adapter_hub,
        )
        manifest = _manifest(plan, twins, files, functions, origin, calibration)
        text = json_from_record(manifest)
        manifest_from_json(text, source=f"the manifest for {source.checkpoint}")  # raises the errors of Bundle.open
        (folder / MANIFEST_NAME).write_bytes(text)
    return Bundle.open(plan.destination)


def _calibration_set(plan: BundlePlan) -> CalibrationSet | None:
    """Return the windows of the file of prompts, or None if matrices are rounded without them."""
    quantization, source = plan.choices.quantization, plan.source
    if quantization is None or quantization.calibrate is None:
        return None
    return calibration_set(
        quantization.calibrate,
        source.tokenizer,
        plan.decoding,
        prediction_shift=source.config.architecture.prediction_shift,
        intermediate_size=source.config.dimensions.intermediate_size,
    )


def _write_graphs(
    folder: Path, plan: BundlePlan, report: Callable[[str, int, int], None]
) -> tuple[list[str], list[GraphTwin]]:
    """Trace, check and write the graphs of `plan`. Return their plugins, sorted, and their twins."""
    source, choices = plan.source, plan.choices
    found: set[str] = set()
    twins = []
    for graph in plan.graphs:
        report(f"tracing {graph.name}", 0, 0)
        model = graph_from_dimensions(
            source.config.dimensions,
            plan.records,
            WEIGHTS_NAME,
            dialect=graph.dialect,
            dtype=choices.dtype,
            with_logits=choices.with_logits,
            part=graph.part,
        )
        if graph.dialect in choices.rotary_dialects:
            model = with_rotary_inputs(model)
        models: dict[_TwinKey, tuple[ir.Model, list[FusedTensor]]] = {}
        if graph.dialect == "standard" and choices.dtype != "bfloat16":  # ONNX Runtime's CPU provider has no bfloat16
            of_cpu = twins_for_cpu(model, source.config.dimensions, graph.part)
            models = {("cpu", form): (twin, []) for form, twin in of_cpu.items()}
        has_canvas = source.config.dimensions.canvas is not None
        if graph.dialect == "standard" and not graph.is_stage:  # stages keep their caches on the host
            of_cuda = twin_for_cuda(model, source.config.dimensions)
            if of_cuda is not None:
                models["cuda", "packed"] = of_cuda
        model = with_expert_operators(model, graph.dialect, gelu=has_canvas)
        if graph.dialect == "standard" and choices.plugins:
            model = with_plugins(model)
        report(f"checking and writing {graph.name}", 0, 0)
        if graph.dialect == "portable":
            check_portable(ir.to_proto(model), graph.name, quantized=choices.quantization is not None)
        ir.save(model, folder / graph.name)
        kind = None if choices.quantization is None else choices.quantization.kind
        needs_twin = choices.dtype != "bfloat16" and kind != "int8" if has_canvas else kind is not None
        if needs_twin and graph.dialect == ("standard" if has_canvas else "portable"):
            models["webgpu", "packed"] = twin_for_webgpu(ir.load(folder / graph.name), plan.records), []
        found.update(plugins_of(model))
        digest = sha256_of_file(folder / graph.name)
        for (provider, form), (twin, fused) in models.items():
            name = f"{graph.name.removesuffix('.onnx')}.{provider}{'' if form == 'packed' else '-mapped'}.onnx"
            ir.save(twin, folder / name)
            twins.append(
                GraphTwin(
                    graph=name,
                    source=graph.name,
                    source_sha256=digest,
                    provider=provider,
                    form=form,
                    fused=fused,
                )
            )
    return sorted(found), twins


def _manifest(
    plan: BundlePlan,
    twins: list[GraphTwin],
    files: list[FileRecord],
    plugins: list[str],
    origin: Origin,
    calibration: CalibrationSet | None,
) -> Manifest:
    source, choices = plan.source, plan.choices
    architecture, tokens = source.config.architecture, source.tokenizer.special_tokens
    dialects, quantization = choices.dialects, choices.quantization
    return Manifest(
        schema=SCHEMA_VERSION,
        contract=contract_of(source.config.dimensions),
        architecture=architecture.name,
        dialect=dialects[0],
        dtype=choices.dtype,
        quantization=None
        if quantization is None
        else quantization.record_for(dialects, calibration.record if calibration is not None else None),
        with_logits=choices.with_logits,
        prediction_shift=architecture.prediction_shift,
        dimensions=source.config.dimensions,
        special_tokens=tokens,
        decoding=plan.decoding,
        graph=GRAPH_NAMES[dialects[0]],
        portable_graph=GRAPH_NAMES["portable"] if len(dialects) > 1 else None,
        weights=WEIGHTS_NAME,
        stages=[
            Stage(graph=graph.name, first_layer=graph.part.first, end_layer=graph.part.end)
            for graph in plan.graphs
            if graph.is_stage
        ],
        tensors=plan.records,
        files=files,
        origin=origin,
        rotary_inputs=choices.rotary_dialects,
        twins=twins,
        plugins=plugins,
        defaults=dict(choices.defaults),
    )


def _file_record(path: Path) -> FileRecord:
    return FileRecord(path=path.name, size=path.stat().st_size, sha256=sha256_of_file(path))
