"""The rooms of every package, on the lines that layers.toml gives them, and which imports which. Reads no picture.

The imports are those of the files, found by grimp (which import-linter brings), not those that the list allows.
"""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import grimp

PROJECT = Path(__file__).resolve().parents[2]
LAYERS = PROJECT / "tools" / "house" / "layers.toml"

Arrow = tuple[str, str]
"""Who imports, what is imported."""
Lines = tuple[tuple[str, ...], ...]
"""Names side by side, the line that may import all others first."""


@dataclass(frozen=True)
class Package:
    """One top folder. A room is a folder in it, or a file that lies there alone."""

    name: str
    """As it is imported, e.g. lopa.runtime."""
    lines: Lines
    """Its rooms."""
    arrows: frozenset[Arrow]
    """Between its rooms."""
    imports: tuple[str, ...]
    """Names of other packages, in the order of the house."""


@dataclass(frozen=True)
class Import:
    """One file imports another; both as modules, e.g. lopa.runtime.contract.forward."""

    importer: str
    imported: str


def house_from_imports() -> tuple[Package, ...]:
    """Every package, the one that may import all others first."""
    settings = tomllib.loads(LAYERS.read_text(encoding="utf-8"))["tool"]["importlinter"]
    lists = [contract for contract in settings["contracts"] if contract["type"] == "layers"]
    order = tuple(name for contract in lists if "containers" not in contract for name in contract["layers"])
    lines = {contract["containers"][0]: contract["layers"] for contract in lists if "containers" in contract}
    modules, imports = modules_and_imports(settings["root_packages"])
    return tuple(_package(name, order, lines.get(name), modules, imports) for name in order)


def modules_and_imports(packages: Iterable[str]) -> tuple[frozenset[str], tuple[Import, ...]]:
    """Every file of `packages` as a module, and every import from one of them to another."""
    graph = grimp.build_graph(*packages, cache_dir=None)
    found = [
        Import(importer, imported)
        for importer in graph.modules
        for imported in graph.find_modules_directly_imported_by(importer)
    ]
    return frozenset(graph.modules), tuple(found)


def _package(
    name: str,
    order: tuple[str, ...],
    listed: list[str] | None,
    modules: frozenset[str],
    imports: tuple[Import, ...],
) -> Package:
    rooms = frozenset(room for module in modules if (room := _room(module, name)))
    pairs = {(_room(each.importer, name), _room(each.imported, name)) for each in imports}
    arrows = frozenset((a, b) for a, b in pairs if a and b and a != b)
    own = [each.imported for each in imports if _is_in(each.importer, name)]
    others = {other for imported in own for other in order if _is_in(imported, other)}
    return Package(
        name=name,
        lines=_lines_as_listed(listed) if listed else _lines_by_depth(rooms, arrows),
        arrows=arrows,
        imports=tuple(other for other in order if other in others - {name}),
    )


def without_detours(arrows: frozenset[Arrow]) -> frozenset[Arrow]:
    """`arrows` but those that a way over other rooms says too (the transitive reduction; `arrows` have no circle)."""
    return frozenset((a, b) for a, b in arrows if not any(b in _reached(c, arrows) for d, c in arrows if d == a != c))


def _reached(start: str, arrows: frozenset[Arrow]) -> set[str]:
    """What `start` imports, at least one step away."""
    reached: set[str] = set()
    found = {start}
    while found:
        found = {b for a, b in arrows if a in found} - reached
        reached |= found
    return reached


def _lines_as_listed(listed: list[str]) -> Lines:
    return tuple(tuple(room.strip() for room in line.split("|")) for line in listed)


def _lines_by_depth(rooms: frozenset[str], arrows: frozenset[Arrow]) -> Lines:
    """Lines for a package without a list: each room right above the highest that it imports."""
    lines: list[tuple[str, ...]] = []
    left = rooms
    while left:
        line = tuple(sorted(room for room in left if not any(a == room and b in left for a, b in arrows)))
        if not line:
            raise ValueError(f"received rooms that import each other in a circle, among {sorted(left)}")
        lines.insert(0, line)
        left -= set(line)
    return tuple(lines)


def _room(module: str, package: str) -> str:
    """The room of `package` that `module` lies in; empty for the package itself and for other packages' modules."""
    return module.removeprefix(f"{package}.").split(".")[0] if module.startswith(f"{package}.") else ""


def _is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")
