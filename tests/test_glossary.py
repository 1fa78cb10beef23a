"""The glossary explains terms used in README, docs and help, and no others."""

import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
GLOSSARY = (PROJECT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
TERMS = [term for bold in re.findall(r"^\*\*(.+?)\.\*\*", GLOSSARY, re.MULTILINE) for term in bold.split(", ")]
PAGES = (PROJECT / "README.md", *(PROJECT / "docs").rglob("*.md"))
USED_IN = (*PAGES, *(PROJECT / "src" / "lopa" / "cli").rglob("*.py"))


@pytest.mark.parametrize("term", TERMS)
def test_every_term_is_used_somewhere(term: str) -> None:
    stem = re.escape(term.removesuffix("y")).replace(r"\ ", r"[\s_-]+")
    word = re.compile(rf"(?<![a-z]){stem}", re.IGNORECASE)
    assert any(word.search(path.read_text(encoding="utf-8")) for path in USED_IN if path.name != "glossary.md")


def test_every_term_is_explained_once() -> None:
    assert len(TERMS) == len(set(TERMS))
