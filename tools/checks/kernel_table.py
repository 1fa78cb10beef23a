"""Table of the compiled kernels, from archives: `python -m tools.checks.kernel_table FOLDER` writes it.

`make kernels` compiles all archives first. A cell has the registers of a thread, the bytes of spilled registers and the
bytes of shared memory of a block.
"""

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[2] / "tests" / "plugins" / "kernel_table.txt"


def cell(entry: dict[str, Any]) -> str:
    """Return the cell of an entry of an archive's index."""
    return f"{entry['registers']}/{entry['spills']}/{entry['shared']}"


def index_of_archive(path: Path) -> dict[str, Any]:
    """Return the index of an archive."""
    with zipfile.ZipFile(path) as archive:
        index: dict[str, Any] = json.loads(archive.read("index.json"))
    return index


def read_table(path: Path = TABLE) -> dict[str, dict[str, str]]:
    """Return the cells of each target by variant."""
    head, *lines = [line.split() for line in path.read_text().splitlines()]
    return {target: {line[0]: line[n] for line in lines} for n, target in enumerate(head) if n}


def main() -> None:
    """Write the table of the archives in a folder."""
    indices = [index_of_archive(path) for path in sorted(Path(sys.argv[1]).glob("*.zip"))]
    rows = [["variant", *(index["target"] for index in indices)]]
    for variant in indices[0]["kernels"]:
        rows.append([variant, *(cell(index["kernels"][variant]) for index in indices)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{text:{width}}" for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    TABLE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
