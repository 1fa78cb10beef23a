"""Copy an int8 bundle with rows rounded to 16 bits, as `lopa-export qnn` rounds them.

Usage: python -m tools.measure rows BUNDLE COPY

`lopa-export bench quality COPY EVAL` then measures on the CPU what the form costs, without QNN's emulator, which needs
seconds for a forward.
"""

import shutil
from pathlib import Path

import click
import msgspec
import onnx_ir as ir

from lopa.export.qnn.quantized_products import Int16RowsPass
from lopa.runtime.bundle import Bundle, sha256_of_file
from lopa.runtime.bundle.manifest import FileRecord
from lopa.runtime.bundle.record import json_from_record


def copy_with_int16_rows(source: Bundle, destination: Path) -> None:
    """Write a copy of the standard graph and the weights of `source` to a new folder. Raises OSError."""
    bundle = source.with_dialect("standard")
    destination.mkdir()
    twins = {each.graph for each in bundle.manifest.cpu_graphs}
    records = [record for record in bundle.manifest.files if record.path not in twins]
    for record in records:
        shutil.copy(bundle.file(record.path), destination)
    model = ir.load(bundle.graph)
    Int16RowsPass()(model)
    graph = destination / bundle.graph.name
    ir.save(model, graph)
    changed = FileRecord(path=graph.name, size=graph.stat().st_size, sha256=sha256_of_file(graph))
    files = [changed if record.path == graph.name else record for record in records]
    manifest = msgspec.structs.replace(bundle.manifest, files=files, cpu_graphs=[])
    (destination / "manifest.json").write_bytes(json_from_record(manifest))


@click.command
@click.argument("bundle", type=click.Path(path_type=Path, exists=True))
@click.argument("copy", type=click.Path(path_type=Path))
def main(bundle: Path, copy: Path) -> None:
    """Copy BUNDLE, in int8, to the new folder COPY, with rows rounded to 16 bits."""
    copy_with_int16_rows(Bundle.open(bundle), copy)
