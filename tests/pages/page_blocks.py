"""Blocks of code of a page, in order, with what the page shows below them and why some are not run."""

import re
from dataclasses import dataclass

_GENERATED = re.compile(r"^<!-- generated: .*?^<!-- end -->", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(
    r"^( *)(?:<!-- not run, (\w+): [^\n]+ -->\n *)?```(sh|python|js|html)\n(.*?)^ *```$"
    r"(?:\n\n *```text\n(.*?)^ *```$)?",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """Block of code of a page."""

    language: str
    code: str
    line: int
    """Its line in the page, from 1."""
    kept_from: str | None
    """Kind of need that a test lacks; None if the block runs."""
    shown: str | None
    """Output that the page shows directly below it."""


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of code of a page.

    A block does not run with a comment such as `<!-- not run, network: pip downloads a package -->` directly before it,
    or if it checks out a commit. tests/cli/test_examples.py runs generated examples.
    """
    kept = _GENERATED.sub(lambda found: "\n" * found[0].count("\n"), page)
    return [
        Block(
            language=found[3],
            code=_without(found[1], found[4]),
            line=kept.count("\n", 0, found.start(3)) + 1,
            kept_from="commit" if found[4].startswith("git worktree add") else found[2],
            shown=None if found[5] is None else _without(found[1], found[5]),
        )
        for found in _BLOCK.finditer(kept)
    ]


def _without(indent: str, text: str) -> str:
    return "".join(line.removeprefix(indent) for line in text.splitlines(keepends=True))
