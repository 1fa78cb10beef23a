"""Configuration of the documentation site: `make docs` builds it into out/docs."""

import shutil
import sys
from pathlib import Path

from sphinx.application import Sphinx

PROJECT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(PROJECT), str(PROJECT / "src")]

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

PAGE = PROJECT / "out" / "docs-page"
"""Page that decodes the embedded model in the browser, which `make docs` makes if npm is available."""
PAGE_MARKER = "<!-- page of the embedded model -->"
PAGE_LINK = '**<a href="../page/index.html">Try the embedded model in this browser.</a>** It loads 24 MB.'


def _insert_link(_app: Sphinx, _page: str, source: list[str]) -> None:
    source[0] = source[0].replace(PAGE_MARKER, PAGE_LINK if PAGE.is_dir() else "")


def _copy_page(app: Sphinx, error: Exception | None) -> None:
    if error is not None:
        return
    shutil.rmtree(app.outdir / "page", ignore_errors=True)
    if PAGE.is_dir():
        shutil.copytree(PAGE, app.outdir / "page")


def _document_with_link(*_: object) -> list[str]:
    """Return the document that Sphinx reads again, because the page may have come or gone."""
    return ["how-to/browser"]


def setup(app: Sphinx) -> None:
    """Put the page of the embedded model into the site."""
    app.connect("source-read", _insert_link)
    app.connect("env-get-outdated", _document_with_link)
    app.connect("build-finished", _copy_page)
