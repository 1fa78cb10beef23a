"""Open the sides that tools/gpu/report.py compares in one dtype: our engines on the device, and torch."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np

from lopa.bench.forward.cost_measurement import random_prefix_rows, random_window
from lopa.bench.forward.work import ForwardShape
from lopa.bench.gpu.device import free_unused, memory_in_use
from lopa.bench.gpu.markdown import ENGINE_PREFIX
from lopa.bench.gpu.results import OpenedSide, without_stage
from lopa.bench.speed.eager_model import compile_model, eager_model_from_checkpoint
from lopa.bench.speed.eager_session import EagerSession
from lopa.export.weights.plan import Dtype
from lopa.export.weights.torch_dtypes import TORCH_DTYPES
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.cuda.cuda_operators import cuda_operators, loaded_library
from lopa.runtime.device_families import parse_device
from lopa.runtime.errors import BadInputError, MissingBackendError
from lopa.runtime.sessions.sequential_session import SequentialSession
from lopa.runtime.sessions.session import Session, next_request_number, open_session
from tools.gpu.run import GpuRun

EAGER, COMPILED = "torch eager", "torch.compile"
OpenedSession = TypeVar("OpenedSession", bound=Session)


@dataclass(frozen=True)
class Sides:
    """Open sessions by their names in the report. Sessions that failed to open are absent."""

    bundle: Bundle
    engines: dict[str, Session] = field(default_factory=dict)
    torch: dict[str, Session] = field(default_factory=dict)
    """EAGER and COMPILED. The latter compiles on first use."""


@contextmanager
def open_sides(run: GpuRun, dtype: Dtype) -> Iterator[Sides]:
    """Open every side in turn, and run the largest shape on each to measure its memory.

    Raises BadInputError if the work folder has no bundle of this dtype.
    """
    settings = run.settings
    if not settings.bundle(dtype).exists():
        raise BadInputError(
            f"{settings.work} has no bundle of {settings.name} in {dtype}",
            expected="a bundle from the stage export",
            remedy="run the stages checkpoint and export first, or omit --stage",
        )
    sides = Sides(Bundle.open(settings.bundle(dtype)))
    free_unused(settings.device)
    run.put(without_stage(run.results, "open", dtype))
    with ExitStack() as opened:
        for name, opening in _engines(sides.bundle, settings.device).items():
            session = _open_side(run, sides.bundle, name, opening)
            if session is not None:
                opened.callback(session.close)
                sides.engines[name] = session
        eager = _open_side(run, sides.bundle, EAGER, partial(_eager_session, run, dtype))
        if eager is not None:
            opened.callback(sides.torch.clear)  # releases the weights
            compiled = compile_model(eager.model)
            sides.torch.update({EAGER: eager, COMPILED: EagerSession(compiled, together=True)})
        yield sides


@contextmanager
def forward_of_shape(session: Session, manifest: Manifest, shape: ForwardShape) -> Iterator[Callable[[], object]]:
    """Yield a function that runs a forward of `shape` after a random prefix. Release the request at the end."""
    rng, request = np.random.default_rng(0), next_request_number()
    try:
        session.append_rows(request, random_prefix_rows(manifest, shape.prefix, rng))
        yield partial(SequentialSession(session).run, random_window(manifest, request, shape, rng))
    finally:
        session.free(request)


def _engines(bundle: Bundle, device: str) -> dict[str, Callable[[], Session]]:
    """Return functions that open our engines by name: on a GPU with this project's operators, and without them."""
    name = ENGINE_PREFIX + device
    if device == "cpu":
        return {name: partial(open_session, bundle, device)}
    plain = partial(open_session, bundle.with_twins(), device)
    return {name: partial(_session_with_operators, bundle, device), f"{name}, plain graph": plain}


def _session_with_operators(bundle: Bundle, device: str) -> Session:
    """Open a bundle on a GPU. Raises MissingBackendError if its plain graph runs."""
    session = open_session(bundle, device)
    found = cuda_operators(bundle, loaded_library(parse_device(device, "cuda").number))
    if isinstance(found, str):
        session.close()
        raise MissingBackendError(
            f"this project's operators are not used: {found}",
            expected="a bundle and a device that they support",
            remedy="see lopa-export doctor",
        )
    return session


def _eager_session(run: GpuRun, dtype: Dtype) -> EagerSession:
    settings = run.settings
    model = eager_model_from_checkpoint(settings.checkpoint, None, dtype=TORCH_DTYPES[dtype], device=settings.device)
    return EagerSession(model, together=True)


def _open_side(run: GpuRun, bundle: Bundle, name: str, opening: Callable[[], OpenedSession]) -> OpenedSession | None:
    """Return the session after its first forward, or None after recording a failure."""
    settings, dtype = run.settings, bundle.manifest.dtype
    before, began = memory_in_use(settings.device), time.perf_counter()
    largest = max(settings.shapes, key=lambda shape: (shape.branches * shape.window, shape.prefix))
    session = None
    try:
        session = opening()
        with forward_of_shape(session, bundle.manifest, largest) as forward:
            forward()
    except Exception as error:  # engines raise different exceptions, and the other sides can still be measured
        run.add_failure(dtype, name, "open", "", error)
        if session is not None:
            session.close()
        free_unused(settings.device)
        return None
    seconds, memory = time.perf_counter() - began, memory_in_use(settings.device) - before
    run.add(OpenedSide(dtype, name, seconds, memory))
    run.log(f"open {dtype}: {name}; {seconds:.1f} s")
    return session
