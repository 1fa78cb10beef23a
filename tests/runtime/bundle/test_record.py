"""JSON files of a bundle: versions are checked first, then fields, then conditions."""

from pathlib import Path

import pytest

from lopa.runtime.bundle.record import Reasons, Record, json_from_record, record_from_file
from lopa.runtime.errors import BadInputError


class Shelf(Record, frozen=True, forbid_unknown_fields=True, kw_only=True):
    books: int


def _find_book_errors(shelf: Shelf) -> Reasons:
    if shelf.books > 9:
        yield f"{shelf.books} books", "at most 9"


def _read(path: Path, text: str) -> Shelf:
    path.write_text(text)
    checks = [_find_book_errors]
    return record_from_file(path, Shelf, what="a shelf", schema=3, remedy="buy another", checks=checks)


def test_record_round_trips_and_versions_come_first(tmp_path: Path) -> None:
    text = json_from_record(Shelf(schema=3, contract=1, books=2)).decode()
    assert text == '{\n  "schema": 3,\n  "contract": 1,\n  "books": 2\n}\n'
    assert _read(tmp_path / "shelf.json", text).books == 2


@pytest.mark.parametrize(
    ("text", "received", "expected", "remedy"),
    [
        (
            '{"schema": 4, "contract": 1, "cds": 7}',
            " has schema version 4",
            "schema version 3",
            "update lopa-export, or",
        ),
        ('{"schema": 2, "contract": 1}', " has schema version 2", "schema version 3", "buy another"),
        ('{"schema": 3, "contract": 2}', " has contract version 2", "contract version 1", "update lopa-export, or"),
        ('{"books": 1}', " is not a shelf: ", "a JSON object with schema and contract", "buy another"),
        ('{"schema": 3, "contract": 1, "books": 1, "cds": 7}', "cds", "the fields of schema version 3", "buy another"),
        ('{"schema": 3, "contract": 1, "books": 10}', " has 10 books", "at most 9", "buy another"),
    ],
)
def test_first_problem_is_reported(tmp_path: Path, text: str, received: str, expected: str, remedy: str) -> None:
    with pytest.raises(BadInputError) as caught:
        _read(tmp_path / "shelf.json", text)
    assert caught.value.received.startswith(str(tmp_path / "shelf.json"))
    assert received in caught.value.received
    assert caught.value.expected == expected
    assert caught.value.remedy.startswith(remedy)
    assert caught.value.remedy.endswith("buy another")
