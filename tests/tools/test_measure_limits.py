"""tools/measure_limits.py on the tiny bundle, which never heard of waiting lines."""

from pathlib import Path

from tools.checkpoint.line_lessons import TAUGHT
from tools.measure_limits import VARIANTS, questions, table_of_limits

from lopa.runtime.decoder import Decoder


def test_a_cell_for_every_task(tiny_bundle: Path) -> None:
    items = questions(1)
    assert [item.kind for item in items] == list(TAUGHT)
    assert all(item.is_right(item.answer) for item in items)
    with Decoder.open(tiny_bundle, threads=1) as decoder:
        table = table_of_limits(decoder, items)
    assert [row[0] for row in table.rows] == [variant.name for variant in VARIANTS]
    assert len({row[0] for row in table.rows}) == len(VARIANTS)
    cells = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    # Twelve forwards for as many tokens: nothing is beyond their reach.
    assert cells["top_n 1"]["shuffle"] in ("0 (100)", "100 (100)")
    assert float(cells["top_n 4"]["tokens/forward of a shuffle"]) > float(
        cells["top_n 1"]["tokens/forward of a shuffle"]
    )
