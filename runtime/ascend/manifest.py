"""engine.json: what `lopa-export ascend` compiled for one kind of NPU, checked strictly when read.

It lies beside the OM files in engines/ascend-*/ of a bundle. Does not compile and does not run anything.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.costs import weights_digest
from lopa.runtime.bundle.engine_file import ENGINE_NAME, ENGINES_FOLDER, description_from_folder, folders_of_engines
from lopa.runtime.bundle.gears import Gear, gears_can_be_used
from lopa.runtime.bundle.manifest import FileRecord, Name
from lopa.runtime.errors import BadInputError

ENGINE_SCHEMA = 1
_PREFIX = "ascend-"
_REMEDY = "build it again: lopa-export ascend BUNDLE --soc-version SOC"
Precision = Literal["origin", "fp16", "bf16"]
"""The graph's own types, or what ATC may lower float32 to."""
Dtype = Annotated[str, Meta(pattern=r"^(bool|u?int(8|16|32|64)|b?float16|float32|float64)\Z")]
"""numpy's name, or bfloat16."""
Dim = Annotated[int, Meta(ge=0, le=2**32)]


class EngineInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One input of the portable form, in its order."""

    name: str
    dtype: Dtype
    dims: Annotated[list[Annotated[int, Meta(ge=-1, le=2**32)]], Meta(max_length=8)]
    """-1 where gears differ."""


class EngineOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One output of the portable form, in its order."""

    name: str
    dtype: Dtype


class EngineGear(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One gear and how the engine runs it."""

    gear: Gear
    dims: Annotated[list[Dim], Meta(max_length=4096)]
    """What stands in place of every -1 of the inputs, in their order. Two gears may have the same."""
    model: Name
    """The OM file, relative to the engine's folder."""


class AscendEngine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file."""

    schema: int
    contract: int
    made: str
    """ISO date and time."""
    soc_version: str
    precision: Precision
    int8: bool
    """Whether the graph was one that AMCT had quantized."""
    dynamic: bool
    """One OM for all gears, whose dims are set before every forward; otherwise OMs of fixed shapes."""
    inputs: Annotated[list[EngineInput], Meta(max_length=4096)]
    outputs: Annotated[list[EngineOutput], Meta(max_length=65536)]
    gears: Annotated[list[EngineGear], Meta(max_length=256)]
    """In the order of the plan."""
    graph_sha256: str
    """Of the graph that was compiled."""
    weights_sha256: str
    """Of the bundle's weights."""
    commands: list[list[str]]
    """What was run, a list of arguments for each OM; paths are relative to the folder that it was run in."""
    cann_version: str | None
    """Of the toolkit; None if it does not say."""
    cache_key: str
    """sha256 over all that decides what is compiled."""
    files: Annotated[list[FileRecord], Meta(max_length=4096)]
    """OM files, weights and log, relative to the engine's folder."""


@dataclass(frozen=True)
class FoundEngine:
    """An engine on disk."""

    folder: Path
    engine: AscendEngine

    @property
    def name(self) -> str:
        """The folder's."""
        return self.folder.name

    def fits(self, bundle: Bundle) -> bool:
        """Whether it was made of this bundle's weights."""
        return self.engine.weights_sha256 == weights_digest(bundle)

    def model(self, gear: EngineGear) -> Path:
        """The OM that runs `gear`."""
        return self.folder / gear.model


def engine_folder(bundle: Bundle, soc_version: str) -> Path:
    """Where the engine for `soc_version` lies: Ascend910B1 -> engines/ascend-910B1."""
    return bundle.path / ENGINES_FOLDER / f"{_PREFIX}{soc_version.removeprefix('Ascend')}"


def engine_folders(bundle: Bundle) -> list[Path]:
    """Where the bundle has engines for Ascend, by name."""
    return folders_of_engines(bundle, _PREFIX)


def engine_from_folder(folder: Path) -> FoundEngine:
    """Read and check an engine; that its files are there, with their sizes, not their digests.

    Raises BadInputError when it cannot be read, is of another schema or contract, or is not whole.
    """
    engine = description_from_folder(folder, AscendEngine, ENGINE_SCHEMA, _REMEDY)
    _check_gears(folder, engine)
    return FoundEngine(folder, engine)


def _check_gears(folder: Path, engine: AscendEngine) -> None:
    listed = {record.path for record in engine.files}
    holes = sum(dim == -1 for each in engine.inputs for dim in each.dims)
    wrong = [gear.model for gear in engine.gears if gear.model not in listed or len(gear.dims) != holes]
    if wrong or not gears_can_be_used([each.gear for each in engine.gears]):
        raise BadInputError(
            f"{folder / ENGINE_NAME} has {len(engine.gears)} gears that cannot be used, {len(wrong)} of them without a "
            "model or with the wrong number of dims",
            expected=f"gears with a listed model and {holes} dims, in shapes as a plan of gears has them",
            remedy=_REMEDY,
        )
