"""Configuration of the documentation site: `make docs` builds it into out/docs."""

import sys
from pathlib import Path

from sphinx.application import Sphinx

PROJECT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(PROJECT), str(PROJECT / "src")]

from tools.checks.reference import text_with_tables  # noqa: E402

import lopa  # noqa: E402

project = "lopa-export"
author = "the maintainers of lopa-export"
release = version = lopa.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["conf.py"]
default_role = "code"  # `name` in docstrings
myst_heading_anchors = 4  # #anchors of headings, as forges make them
myst_enable_extensions = ["colon_fence"]
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
autodoc_typehints = "signature"
napoleon_use_ivar = True
html_theme = "furo"
html_title = "lopa-export"
html_copy_source = False


def _insert_tables(_app: Sphinx, _page: str, source: list[str]) -> None:
    source[0] = text_with_tables(source[0])


def setup(app: Sphinx) -> None:
    """Put the generated tables into the pages."""
    app.connect("source-read", _insert_tables)
