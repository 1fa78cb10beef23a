"""Stages of tools/gpu/report.py in order. Existing folders of the work folder are reused."""

import itertools
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import torch

from lopa.bench.forward.comparison import compare_forwards
from lopa.bench.forward.torch_rates import measure_torch_rates
from lopa.bench.forward.work import ForwardShape, MachineRates, floor_seconds, work_of_forward
from lopa.bench.gpu.device import check_device, free_unused
from lopa.bench.gpu.host_share import measure_steps
from lopa.bench.gpu.kernel_times import profile_kernels
from lopa.bench.gpu.markdown import ENGINE_PREFIX, shape_text
from lopa.bench.gpu.results import (
    CheckResult,
    DecodeResult,
    ForwardResult,
    GpuResults,
    KernelsResult,
    RatesResult,
    Stage,
)
from lopa.bench.gpu.token_agreement import agreement_from_session, reference_from_checkpoint
from lopa.bench.report import make_folder
from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.export.json_file import json_object_from_file
from lopa.export.weights.plan import Dtype
from lopa.export.weights.torch_dtypes import TORCH_DTYPES
from lopa.runtime.errors import BadInputError, CheckFailedError, MissingBackendError
from lopa.runtime.sessions.session import Session
from tools.checkpoint.likeness import config_from_likeness
from tools.checkpoint.make import checkpoint_from_likeness
from tools.gpu.programs import programs_for_device, run_program
from tools.gpu.run import GpuRun, Settings
from tools.gpu.sides import EAGER, Sides, forward_of_shape, open_sides

_MADE, _REUSED = "made", "reused"


def gpu_report(settings: Settings, log: Callable[[str], None] = print) -> GpuResults:
    """Run the stages of `settings` and write gpu.json and gpu.md to its `out` after each result.

    Results of earlier runs with the same work folder, model and device stay in the report until their stage runs again.
    Raises BadInputError for unusable folders, and MissingBackendError for a missing device. A failing engine becomes
    part of the report.
    """
    check_device(settings.device)
    for folder in (settings.out, settings.work):
        make_folder(folder)
    run = GpuRun.start(settings, log)
    if run.may_start("programs"):
        _programs(run)
    if run.may_start("checkpoint"):
        _checkpoint(run)
    for dtype in settings.dtypes:
        if run.may_start("export"):
            _export(run, dtype)
    for dtype in settings.dtypes:
        if any(run.may_start(stage) for stage in _OPEN_STAGES):
            with open_sides(run, dtype) as sides:
                for stage, measure in _OPEN_STAGES.items():
                    if run.may_start(stage):
                        measure(run, dtype, sides)
    return run.results


def check_results(results: GpuResults) -> None:
    """Raise CheckFailedError if a program failed or an engine disagreed with float32.

    Raises MissingBackendError if one of our engines could not be opened.
    """
    failed = [each for each in results.programs if not each.passed]
    if failed:
        raise CheckFailedError(
            f"failed programs: {', '.join(each.name for each in failed)}; the first ended with: {failed[0].last}",
            expected="exit code 0, and tests that ran",
            remedy="read their output in the report's folder programs",
        )
    wrong = [each for each in results.checks if each.side.startswith(ENGINE_PREFIX) and each.agreement.disagreements]
    for each in wrong:
        raise CheckFailedError(
            f"{each.side}, {each.dtype}: {each.agreement.disagreements} of {each.agreement.rows} positions have tokens "
            f"up to {each.agreement.worst:.2g} nats below the best token in float32",
            expected=f"at most {each.agreement.tolerance:g} nats",
            remedy="run lopa-export verify BUNDLE, and ignore this engine's figures in the report",
        )
    unopened = [each for each in results.failures if each.stage == "open" and each.side.startswith(ENGINE_PREFIX)]
    if unopened:
        raise MissingBackendError(
            f"{unopened[0].side} could not be opened: {unopened[0].reason}",
            expected="an ONNX Runtime with the CUDA provider, and this project's operators",
            remedy="install onnxruntime-gpu in place of onnxruntime, and see lopa-export doctor",
        )


def _programs(run: GpuRun) -> None:
    """Run the programs, as many side by side as the machine has processors."""
    settings, began, left = run.settings, run.begin_stage("programs"), 0
    tiny, logs = settings.work.resolve() / "tiny", settings.out / "programs"
    shutil.rmtree(tiny, ignore_errors=True)
    make_folder(logs)
    run.put(replace(run.results, programs=()))
    for group in programs_for_device(tiny, settings.device):
        if run.seconds_left <= 0:
            left += len(group)
            continue
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for result in pool.map(partial(run_program, device=settings.device, logs=logs), group):
                run.add(result)
                run.log(f"programs: {result.name}; {result.seconds:.1f} s, exit code {result.code}")
    note = f"{len(run.results.programs)} programs" + (f", {left} not started" if left else "")
    run.end_stage("programs", None, began, note, finished=not left)


def _checkpoint(run: GpuRun) -> None:
    settings, began = run.settings, run.begin_stage("checkpoint")
    if not settings.checkpoint.exists():
        checkpoint_from_likeness(settings.likeness, settings.checkpoint)
        run.end_stage("checkpoint", None, began, _MADE)
        return
    config = json_object_from_file(settings.checkpoint / "config.json", remedy=f"remove {settings.checkpoint}")
    if config != config_from_likeness(settings.likeness):
        raise BadInputError(
            f"{settings.checkpoint} is not a likeness of {settings.name}",
            expected="the checkpoint of an earlier run, or no folder",
            remedy="remove it, or choose another --work",
        )
    run.end_stage("checkpoint", None, began, _REUSED)


def _export(run: GpuRun, dtype: Dtype) -> None:
    """Export the bundle, or use the one that is there."""
    settings, began = run.settings, run.begin_stage("export", dtype)
    path = settings.bundle(dtype)
    there = path.exists()
    if not there:
        bundle_from_checkpoint(settings.checkpoint, path, dtype=dtype)
    run.end_stage("export", dtype, began, _REUSED if there else _MADE)


def _check(run: GpuRun, dtype: Dtype, sides: Sides) -> None:
    """Compare the tokens of every engine, and of torch in the same dtype, with float32."""
    began = run.begin_stage("check", dtype)
    reference = reference_from_checkpoint(sides.bundle.manifest, run.settings.checkpoint, run.settings.device)
    compared = sides.engines | _subset(sides.torch, EAGER)
    for name, session in run.parts("check", dtype, began, list(compared.items()), "sides"):
        with run.catch_failure(dtype, name, "check"):
            run.add(CheckResult(dtype, name, agreement_from_session(session, reference)))


def _decode(run: GpuRun, dtype: Dtype, sides: Sides) -> None:
    """Time the decoding steps of our engines."""
    began = run.begin_stage("decode", dtype)
    for name, session in run.parts("decode", dtype, began, list(sides.engines.items()), "engines"):
        with run.catch_failure(dtype, name, "decode"):
            run.add(DecodeResult(dtype, name, measure_steps(session, sides.bundle.manifest)))


def _kernels(run: GpuRun, dtype: Dtype, sides: Sides) -> None:
    """Profile the kernels of our engines."""
    began = run.begin_stage("kernels", dtype)
    profiled = list(itertools.product(run.settings.profiled, sides.engines.items()))
    for shape, (name, session) in run.parts("kernels", dtype, began, profiled, "forwards"):
        with (
            run.catch_failure(dtype, name, "kernels", shape_text(shape)),
            forward_of_shape(session, sides.bundle.manifest, shape) as forward,
        ):
            run.add(KernelsResult(dtype, name, shape, profile_kernels(forward, run.settings.device)))


def _forward(run: GpuRun, dtype: Dtype, sides: Sides) -> None:
    """Time every side at every shape until the time limit."""
    began = run.begin_stage("forward", dtype)
    rates = measure_torch_rates(run.settings.device, TORCH_DTYPES[dtype])
    free_unused(run.settings.device)
    run.add(RatesResult(dtype, rates))
    for shape in run.parts("forward", dtype, began, run.settings.shapes, "shapes"):
        _forward_of_shape(run, dtype, sides, shape, rates)


def _forward_of_shape(run: GpuRun, dtype: Dtype, sides: Sides, shape: ForwardShape, rates: MachineRates) -> None:
    """Time all sides that can run the shape, in alternation."""
    manifest = sides.bundle.manifest
    what = shape_text(shape)
    torch.compiler.reset()  # code of earlier shapes would count towards torch's limit
    usable: dict[str, Session] = {}
    for name, session in (sides.engines | sides.torch).items():
        with run.catch_failure(dtype, name, "forward", what):
            with forward_of_shape(session, manifest, shape) as forward:
                forward()
            usable[name] = session
    floor = floor_seconds(work_of_forward(manifest, shape), rates)
    try:
        found = compare_forwards(usable, manifest, [shape], run.settings.rounds) if usable else ()
    except Exception as error:  # one side failed after its first forward
        run.add_failure(dtype, "all sides", "forward", what, error)
        return
    for each in found:
        run.add(ForwardResult(dtype, each.side, shape, each.median, each.minimum, floor, each.median / floor))
    times = ", ".join(f"{each.side} {each.median * 1e3:.2f}" for each in found)
    run.log(f"forward {dtype} {what}: floor {floor * 1e3:.2f} ms; {times}")


def _subset(sides: dict[str, Session], name: str) -> dict[str, Session]:
    return {name: sides[name]} if name in sides else {}


_OPEN_STAGES: dict[Stage, Callable[[GpuRun, Dtype, Sides], None]] = {
    "check": _check,
    "decode": _decode,
    "kernels": _kernels,
    "forward": _forward,
}
"""Stages that need open sides, in order."""
