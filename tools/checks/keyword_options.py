"""Generate the typed keyword options from the declarations of options: `python -m tools.checks.keyword_options`.

Type checkers need the options as a TypedDict, which cannot be made from a dataclass. A test fails when it is out of
date.
"""

import ast
import inspect
from pathlib import Path

from lopa.runtime.generation_config import OPTIONS, config, keyword_options
from lopa.runtime.options import option_fields

FILE = Path(keyword_options.__file__)


def text_of_keyword_options() -> str:
    """Return the text of the module: everything before its first option as it is, then every option with its type."""
    kinds: dict[str, str] = {}
    for module in (option_fields, config):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                kinds[node.target.id] = ast.unparse(node.annotation).replace("'", '"').replace("Unset", "None")
    head, docstring, _ = FILE.read_text(encoding="utf-8").rpartition('"""\n')
    return head + docstring + "\n" + "".join(f"    {name}: {kinds[name]}\n" for name in OPTIONS)


if __name__ == "__main__":
    FILE.write_text(text_of_keyword_options(), encoding="utf-8")
