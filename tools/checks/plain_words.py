"""Check the mechanical part of the rules for plain English (CONTRIBUTING.md).

Usage: python -m tools.checks.plain_words [PATH ...]

Reads docstrings, constants and class names of Python files, and sentences and terms of Markdown pages. ruff checks the
mood of docstrings (D401). The exit code is 1 if something is found.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_REFERENCE = ROOT / "tests" / "reference"
RECORDINGS = (_REFERENCE, _REFERENCE / "families", _REFERENCE / "moe")
"""Folders whose pages are copied with the recordings."""
MAX_WORDS = 25
"""Maximum number of words in a sentence."""
CODE_FOLDERS = ("src", "tools", "tests", "examples")
PAGES = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs")
BAD_STARTS = frozenset(
    [
        "Of",
        "That",
        "Those",
        "What",
        "Whether",
        "As",
        "Such",
        "Where",
        "Which",
        "Whose",
        "How",
        "Who",
        "Whoever",
        "With",
        "By",
        "In",
        "At",
    ]
)
"""First words that make a docstring a fragment."""
OLD_TERMS = {
    r"undecided": "masked",
    r"decided? (?:position|token|block)s?": "unmasked",
    r"(?:take|taken|takes|taking) back": "remask",
    r"frontier": "first masked position",
    r"gears?": "shape bucket",
    r"lossless": "exact speculative decoding",
    r"wanted rows?": "sampled positions",
    r"whoever": "the client, the caller",
    r"told": "reported",
    r"heard": "received",
    r"as many as have": "(rewrite)",
    r"so many": "a number of, N",
    r"beside (?:that|it|them)": "(rewrite)",
}
"""Words of the former private English, and the field's term for each."""
_OLD_TERMS = [(re.compile(rf"\b{old}\b", re.IGNORECASE), new) for old, new in OLD_TERMS.items()]
_OLD_CONSTANT = re.compile(r"^_?(?:MOST|LEAST)_")
_SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z`\"'(\[*])|\n\s*\n")
_NO_WORDS = re.compile(r"`[^`]*`|\([^()]*\)|https?://\S+")


@dataclass(frozen=True)
class Finding:
    """One broken rule, as `path:line: message`."""

    path: Path
    line: int
    message: str

    def __str__(self) -> str:
        """Return the line that editors can jump to."""
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.message}"


def findings_in_python(path: Path, tree: ast.Module) -> Iterator[Finding]:
    """Yield the broken rules in a module's docstrings and names of constants."""
    nodes = list(ast.walk(tree))
    for line, text in _docstrings(nodes):
        start = text.split(maxsplit=1)[0].rstrip(",.:;") if text.strip() else ""
        if start in BAD_STARTS:
            yield Finding(path, line, f"docstring begins with {start!r}: use a verb or a noun")
        yield from (Finding(path, line, message) for message in _messages_about(text))
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and _OLD_CONSTANT.match(node.id):
            yield Finding(path, node.lineno, f"{node.id}: use MAX_ or MIN_")


def findings_in_page(path: Path, text: str) -> Iterator[Finding]:
    """Yield the old terms and the long sentences of a Markdown page. Code blocks, tables and headings do not count."""
    for line, paragraph in _paragraphs(text):
        yield from (Finding(path, line, message) for message in _messages_about(paragraph))


def repeated_classes(trees: Iterable[tuple[Path, ast.Module]]) -> Iterator[Finding]:
    """Yield the public top-level classes whose name an earlier module has."""
    first: dict[str, Path] = {}
    for path, tree in trees:
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                if node.name in first:
                    yield Finding(path, node.lineno, f"class {node.name} also in {first[node.name].relative_to(ROOT)}")
                first.setdefault(node.name, path)


def _docstrings(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield line and text of the docstrings of modules, classes, functions and of assigned names."""
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for before, statement in zip([node, *node.body], node.body, strict=False):
                described = before is node or isinstance(before, ast.Assign | ast.AnnAssign)
                value = statement.value if described and isinstance(statement, ast.Expr) else None
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield statement.lineno, value.value


def _paragraphs(page: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of the paragraphs and list items of a page."""
    lines: list[str] = []
    first, in_code = 1, False
    for number, line in enumerate([*page.splitlines(), ""], start=1):
        fence = line.lstrip().startswith(("```", "~~~"))
        in_code ^= fence
        skipped = in_code or fence or line.lstrip().startswith(("|", "#", "<", "!["))
        item = re.match(r"\s*(?:[-*]|\d+\.)\s", line) is not None
        if lines and (skipped or item or not line.strip()):
            yield first, "\n".join(lines)
            lines = []
        if not skipped and line.strip():
            if not lines:
                first = number
            lines.append(line)


def _messages_about(text: str) -> Iterator[str]:
    words = _NO_WORDS.sub(" ", text)
    for pattern, new in _OLD_TERMS:
        if found := pattern.search(words):
            yield f"{found.group()!r}: use {new}"
    for sentence in _SENTENCE_END.split(text):
        count = len([word for word in _NO_WORDS.sub("code", sentence).split() if any(map(str.isalnum, word))])
        if count > MAX_WORDS:
            yield f"a sentence of {count} words: {' '.join(sentence.split())[:60]}..."


def _files(paths: Iterable[Path], suffix: str) -> Iterator[Path]:
    for path in paths:
        yield from sorted(path.rglob(f"*{suffix}")) if path.is_dir() else [path] if path.suffix == suffix else []


def findings(paths: Iterable[Path]) -> list[Finding]:
    """Return all broken rules in files and folders. Class names are compared within src/lopa."""
    paths = list(paths)
    found, product = list[Finding](), list[tuple[Path, ast.Module]]()
    for path in _files(paths, ".py"):
        tree = ast.parse(path.read_text())
        found += findings_in_python(path, tree)
        if path.is_relative_to(ROOT / "src"):
            product.append((path, tree))
    found += repeated_classes(product)
    pages = [path for path in _files(paths, ".md") if path.parent not in RECORDINGS]
    found += [finding for path in pages for finding in findings_in_page(path, path.read_text())]
    return found


def main() -> int:
    """Print the broken rules in the given paths, by default in all code and pages. Return the exit code."""
    given = [Path(name).resolve() for name in sys.argv[1:]]
    found = findings(given or [ROOT / name for name in (*CODE_FOLDERS, *PAGES)])
    for finding in found:
        print(finding)
    print(f"{len(found)} findings", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
