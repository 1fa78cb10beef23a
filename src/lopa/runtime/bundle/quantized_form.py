"""Form of a bundle's quantized matrices on the device `cpu`.

mapped: lopa's own kernels read int8 and int4 matrices in the bundle's mapped file (lopa.runtime.cpu_kernels). A session
opens at once and takes no memory of its own for them. The experts of sparse layers may also be floating-point.
packed: ONNX Runtime copies the matrices into the layout of its kernels when a session opens.

All sessions of a process on one bundle use the same form, so that devices that share branches compute alike.
"""

import logging
import os

from lopa.runtime.bundle.bundle import Bundle
from lopa.runtime.bundle.manifest import TwinForm
from lopa.runtime.checked_values import shown
from lopa.runtime.cpu_kernels.kernel_library import kernel_library
from lopa.runtime.errors import BadInputError

VARIABLE = "LOPA_WEIGHTS"
"""Name of the environment variable that sets the form: mapped, packed or auto (the default)."""
_LOG = logging.getLogger(__name__)
_FORMS: dict[str, TwinForm | None] = {"auto": None, "mapped": "mapped", "packed": "packed"}


def cpu_form(bundle: Bundle) -> TwinForm:
    """Return the form in which `bundle` is opened on this machine: packed if it has no graph for a requested one.

    Raises BadInputError for an unknown form in the environment, and for a requested form that this machine does not
    support.
    """
    requested, manifest = requested_form(), bundle.manifest
    if manifest.quantization is None and manifest.dimensions.moe is None:
        return "packed"
    form = _best_form(bundle) if requested is None else _available_form(bundle, requested)
    kind = manifest.dtype if manifest.quantization is None else manifest.quantization.kind
    meaning = "are converted to float32" if manifest.is_fp8 else _MEANINGS[form]
    _LOG.info("%s: %s weights %s", bundle.path, kind, meaning)
    return form


def requested_form() -> TwinForm | None:
    """Return the form that the environment requests, or None for `auto`. Raises BadInputError for an unknown one."""
    name = os.environ.get(VARIABLE) or "auto"
    if name not in _FORMS:
        raise BadInputError(
            f"{VARIABLE}={shown(name)}",
            expected="auto, mapped or packed",
            remedy=f"correct {VARIABLE} or unset it",
        )
    return _FORMS[name]


_MEANINGS: dict[TwinForm, str] = {
    "mapped": "are read in place, in the bundle's mapped file",
    "packed": "are copied into ONNX Runtime's packed form",
}


def _best_form(bundle: Bundle) -> TwinForm:
    if bundle.twin("cpu", "mapped") is not None and kernel_library() is not None:
        return "mapped"
    return "packed"


def _available_form(bundle: Bundle, requested: TwinForm) -> TwinForm:
    """Return `requested`, or packed if `bundle` has no graph for it."""
    if requested == "mapped" and kernel_library() is None:
        raise BadInputError(
            f"{VARIABLE}=mapped, but the kernels of lopa.runtime.cpu_kernels are not available",
            expected="an x86-64 processor with AVX2, and a C++ compiler when lopa-export was installed",
            remedy=f"install a C++ compiler and reinstall lopa-export, or unset {VARIABLE}",
        )
    if requested != "packed" and bundle.twin("cpu", requested) is None:
        reason = "FP8 matrices have none" if bundle.manifest.is_fp8 else "export the checkpoint again"
        _LOG.warning("%s has no graph for %s=%s; %s", bundle.path, VARIABLE, requested, reason)
        return "packed"
    return requested
