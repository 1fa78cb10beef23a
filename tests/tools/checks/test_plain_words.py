"""The check for plain English finds violations, and the project has none."""

import ast
from pathlib import Path

import pytest
from tools.checks import plain_words
from tools.checks.plain_words import ROOT, findings_in_page, findings_in_python, repeated_classes


def messages_about(source: str) -> list[str]:
    return [found.message for found in findings_in_python(ROOT / "x.py", ast.parse(source))]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('"""What a module makes."""', "begins with 'What'"),
        ('def f() -> int:\n    """Of the rows."""', "begins with 'Of'"),
        ('class A:\n    size: int\n    """As many as fit."""', "begins with 'As'"),
        ('"""Return the undecided positions."""', "'undecided': use masked"),
        ("MOST_ROWS = 3", "use MAX_ or MIN_"),
        ("class A:\n    _LEAST_ROWS = 3", "use MAX_ or MIN_"),
        (f'"""Return {"word " * 25}end."""', "a sentence of 27 words"),
    ],
)
def test_broken_rules_are_found(source: str, message: str) -> None:
    assert [message in found for found in messages_about(source)] == [True]


@pytest.mark.parametrize(
    "source",
    [
        '"""Return the masked positions. Raises BadInputError for `undecided`."""',
        "MAX_ROWS = 3",
        f'"""Return {"word " * 20}({"aside " * 20}) end."""',
    ],
)
def test_plain_text_passes(source: str) -> None:
    assert messages_about(source) == []


def test_pages_count_sentences_outside_code_and_tables() -> None:
    words = "word " * 30
    page = f"# {words}\n\n| {words} |\n\n```\n{words}\n```\n\nShort. {words}\nend.\n\n- frontier\n"
    assert [(found.line, found.message.split(":")[0]) for found in findings_in_page(ROOT / "x.md", page)] == [
        (9, "a sentence of 32 words"),
        (12, "'frontier'"),
    ]


def test_a_public_class_name_occurs_once() -> None:
    trees = [(ROOT / name, ast.parse(source)) for name, source in (("a.py", "class A: 0"), ("b.py", "class A: 0"))]
    assert [str(found) for found in repeated_classes(trees)] == ["b.py:1: class A also in a.py"]


def test_the_project_has_no_findings() -> None:
    found = plain_words.findings(ROOT / name for name in (*plain_words.CODE_FOLDERS, *plain_words.PAGES))
    assert [str(each) for each in found] == []


def test_the_program_exits_with_1_on_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = ROOT / "README.md"
    monkeypatch.setattr("sys.argv", ["plain_words", str(page)])
    assert plain_words.main() == 0
    (tmp_path / "page.md").write_text("undecided\n")
    monkeypatch.setattr(plain_words, "ROOT", tmp_path)
    monkeypatch.setattr("sys.argv", ["plain_words", str(tmp_path / "page.md")])
    assert plain_words.main() == 1
