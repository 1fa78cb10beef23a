"""Sizes of the house, for a note: `python tools/house/figures.py [CHECKOUT]`. Any commit can be looked at.

A file of its own, which imports nothing of the project: it would otherwise see this checkout and not the other.
"""

import sys
from collections import Counter
from pathlib import Path

import grimp

PRODUCT = ("runtime", "plugins", "tiny", "export", "bench", "serve", "cli", "tools")


def main(arguments: list[str]) -> None:
    """Print lines, files a folder, and imports between packages and between folders of one package."""
    checkout = Path(arguments[0] if arguments else ".").resolve()
    sys.path[:0] = [str(checkout / "src"), str(checkout)]
    names = {name: name if name == "tools" else f"lopa.{name}" for name in PRODUCT}
    graph = grimp.build_graph(*names.values(), cache_dir=None)

    for title, folders in (("product", PRODUCT), ("tests", ("tests",))):
        files = [path for folder in folders for path in (checkout / folder).rglob("*.py")]
        lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
        fullest = Counter(path.parent for path in files if path.name != "__init__.py").most_common(4)
        print(f"{title}: {len(files)} files, {lines} lines; fullest folders", end=" ")
        print(", ".join(f"{folder.relative_to(checkout)} {count}" for folder, count in fullest))

    between: Counter[tuple[str, str]] = Counter()
    for importer in sorted(graph.modules):
        for imported in graph.find_modules_directly_imported_by(importer):
            ends = (_room(importer), _room(imported))
            if ends[0] != ends[1]:
                between[ends] += 1
    packages: Counter[tuple[str, str]] = Counter()
    for (a, b), count in between.items():
        packages[a.split(".")[0], b.split(".")[0]] += count
    print("imports between packages:", ", ".join(f"{a} > {b} {n}" for (a, b), n in sorted(packages.items()) if a != b))
    for name in PRODUCT:
        rooms = {room for module in graph.modules if (room := _room(module)).startswith(f"{name}.")}
        pairs = {pair: count for pair, count in between.items() if rooms.issuperset(pair)}
        print(f"{name}: {len(rooms)} rooms, {sum(pairs.values())} imports between {len(pairs)} pairs of them")


def _room(module: str) -> str:
    """The package and the folder in it, or the file that lies in it alone: runtime.algorithm, runtime.errors."""
    return ".".join(module.removeprefix("lopa.").split(".")[:2])


if __name__ == "__main__":
    main(sys.argv[1:])
