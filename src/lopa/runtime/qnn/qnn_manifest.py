"""engine.json of an engine that `lopa-export qnn` compiled for one Qualcomm chip, checked strictly on reading.

It is next to the context binaries in engines/qnn-*/ of a bundle.
"""

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from lopa.runtime.bundle.buckets import ShapeBucket, are_valid_shape_buckets
from lopa.runtime.bundle.engine_file import EngineFile, EngineKind, StoredEngine
from lopa.runtime.bundle.manifest import Name
from lopa.runtime.bundle.record import Reasons
from lopa.runtime.errors import BadInputError

MACHINE = Path("/sys/devices/soc0/machine")
"""File in which Linux on a Snapdragon names the chip."""
_NUMBERS = re.compile(r"(\d{1,4}):(\d{2,3})", re.ASCII)


@dataclass(frozen=True)
class QnnSoc:
    """A chip, as QNN's options `soc_model` and `htp_arch` name it."""

    name: str
    """Qualcomm's name, or "MODEL-vARCH" for a chip given by its numbers."""
    soc_model: int
    htp_arch: int
    """Version of the NPU, e.g. 75."""


SOCS = {
    name: QnnSoc(name, soc_model, htp_arch)
    for name, soc_model, htp_arch in (("SM8550", 43, 73), ("SM8650", 57, 75), ("SM8750", 69, 79), ("SM8850", 87, 81))
}
"""Chips whose numbers were tried in the emulator of QNN 2.51."""


def soc_from_option(text: str) -> QnnSoc:
    """Return the chip called `text`, or the one with the numbers "SOC_MODEL:HTP_ARCH".

    Raises BadInputError for anything else.
    """
    if text.upper() in SOCS:
        return SOCS[text.upper()]
    numbers = _NUMBERS.fullmatch(text)
    if numbers is not None:
        model, arch = int(numbers[1]), int(numbers[2])
        known = next((soc for soc in SOCS.values() if (soc.soc_model, soc.htp_arch) == (model, arch)), None)
        return known or QnnSoc(f"{model}-v{arch}", model, arch)
    near = difflib.get_close_matches(text.upper(), SOCS, n=2)
    raise BadInputError(
        f"unknown chip {text!r}",
        expected=f"{' or '.join(near or SOCS)}, or SOC_MODEL:HTP_ARCH such as 57:75",
        remedy="look up both numbers in Qualcomm's table of supported Snapdragon devices",
    )


def soc_of_machine(path: Path = MACHINE) -> str | None:
    """Return the name of this machine's chip, or None if the machine does not name one."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip() or None
    except OSError:
        return None


ENGINE_SCHEMA = 1
_REMEDY = "build it again: lopa-export qnn BUNDLE --soc SOC"


class QnnBucket(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One shape bucket and its graph."""

    bucket: ShapeBucket
    graph: Name
    """ONNX file that names its context binary, relative to the engine's folder."""


class QnnEngine(EngineFile, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Content of engine.json."""

    soc: Annotated[str, Meta(pattern=r"^[\w-]{1,64}\Z")]
    soc_model: Annotated[int, Meta(ge=0, le=9999)]
    htp_arch: Annotated[int, Meta(ge=0, le=999)]
    sdk_version: str
    """Version of the QNN SDK that compiled the context binaries. Another one may reject them."""
    package_version: str
    """Version of onnxruntime-qnn."""
    buckets: Annotated[list[QnnBucket], Meta(min_length=1, max_length=256)]

    @property
    def target(self) -> QnnSoc:
        """Chip that the engine was compiled for."""
        return QnnSoc(self.soc, self.soc_model, self.htp_arch)


def _find_bucket_errors(engine: QnnEngine) -> Reasons:
    listed = {record.path for record in engine.files}
    missing = [each.graph for each in engine.buckets if each.graph not in listed]
    if missing or not are_valid_shape_buckets([each.bucket for each in engine.buckets]):
        yield (
            f"{len(engine.buckets)} invalid shape buckets, {len(missing)} of them without a graph",
            "shape buckets with a listed graph, in shapes that a plan may have",
        )


QNN_ENGINES = EngineKind("qnn-", QnnEngine, ENGINE_SCHEMA, _REMEDY, _find_bucket_errors)
StoredQnnEngine = StoredEngine[QnnEngine]
