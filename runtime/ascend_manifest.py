"""engine.json: what `lopa-export ascend` compiled for one kind of NPU, checked strictly when read.

It lies beside the OM files in engines/ascend-*/ of a bundle. Does not compile and does not run anything.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from lopa.runtime.bundle import Bundle
from lopa.runtime.costs import weights_digest
from lopa.runtime.engine_file import ENGINE_NAME, ENGINES_FOLDER, description_from_folder, folders_of_engines
from lopa.runtime.errors import BadInputError
from lopa.runtime.gears import Gear
from lopa.runtime.manifest import FileRecord

ENGINE_SCHEMA = 1
_PREFIX = "ascend-"
_REMEDY = "build it again: lopa-export ascend BUNDLE --soc-version SOC"
Precision = Literal["origin", "fp16", "bf16"]
"""The graph's own types, or what ATC may lower float32 to."""


class EngineInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One input of the portable form, in its order."""

    name: str
    dtype: str
    """numpy's name, or bfloat16."""
    dims: list[int]
    """-1 where gears differ."""


class EngineOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One output of the portable form, in its order."""

    name: str
    dtype: str
    """numpy's name, or bfloat16."""


class EngineGear(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One gear and how the engine runs it."""

    gear: Gear
    dims: list[int]
    """What stands in place of every -1 of the inputs, in their order. Two gears may have the same."""
    model: str
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
    inputs: list[EngineInput]
    outputs: list[EngineOutput]
    gears: list[EngineGear]
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
    files: list[FileRecord]
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
    if wrong or not engine.gears:
        raise BadInputError(
            f"{folder / ENGINE_NAME} has {len(engine.gears)} gears, {len(wrong)} of them without a model or with "
            "the wrong number of dims",
            expected=f"gears with a listed model and {holes} dims",
            remedy=_REMEDY,
        )
