"""What pages and docstrings name is there: files, modules, sections; the index has every page, the house every room."""

import re
import tomllib
from pathlib import Path

import pytest
from tools.checks.picture import layers_by_container

PROJECT = Path(__file__).resolve().parents[1]
FOLDERS = ("deploy", "docs", "src", "tests", "tools")
PRODUCT = PROJECT / "src" / "lopa"
PACKAGES = sorted(path.parent.name for path in PRODUCT.glob("*/__init__.py"))
PAGES = [PROJECT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")] + sorted(
    (PROJECT / "docs").rglob("*.md")
)
SOURCES = sorted(path for folder in FOLDERS for path in (PROJECT / folder).rglob("*.py"))
LOPA = (PROJECT / "docs" / "lopa.md").read_text(encoding="utf-8")

A_PATH = re.compile(rf"(?<![\w/.~:-])(?:\.\./)*(?:{'|'.join([*FOLDERS, *PACKAGES])})/[\w./*-]*[\w/*]")
A_MODULE = re.compile(r"(?<![\w./-])(?:lopa\.(?:runtime|export|cli|bench|serve|plugins|tiny)|tools)(?:\.[a-z_]\w*)+")
A_LINK = re.compile(r"\]\(([^)\s]+)\)")
A_SECTION = re.compile(r"sections? (\d+(?:(?:,| and|, and) \d+)*)(?: ([A-K](?: and [A-K])*)\b)?(?:, points? (\d))?")


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def name_of(path: Path) -> str:
    return str(path.relative_to(PROJECT))


def headings(page: str) -> set[str]:
    """The anchors that a forge makes of a page's headings."""
    titles = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {
        re.sub(r"[^\w -]", "", re.sub(r"\[(.+?)\]\(.+?\)", r"\1", title).lower()).replace(" ", "-") for title in titles
    }


def test_paths_that_are_named_exist() -> None:
    """In pages and in all of the source: docstrings, comments, messages."""
    wrong = [
        f"{name_of(source)} names {named}"
        for source in [*PAGES, *SOURCES]
        for named in A_PATH.findall(text_of(source))
        if not any(any(base.glob(named)) for base in (PROJECT, PRODUCT, source.parent) if not named.startswith("../"))
        and not (source.parent / named).exists()
    ]
    assert not wrong


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_modules_that_are_named_exist(page: Path) -> None:
    for named in A_MODULE.findall(text_of(page)):
        parts = named.split(".")
        folder = PROJECT if parts[0] == "tools" else PROJECT / "src"
        while parts and (folder / parts[0]).is_dir():
            folder /= parts.pop(0)
        files = [folder / f"{parts.pop(0)}.py"] if parts and (folder / f"{parts[0]}.py").is_file() else []
        code = text_of(files[0] if files else folder / "__init__.py")
        assert not parts or re.search(rf"\b{parts[0]}\b", code), f"{name_of(page)} names {named}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in A_LINK.findall(text_of(page)):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{name_of(page)} links to {link}"
        assert not anchor or anchor in headings(text_of(target)), f"{name_of(page)} links to {link}"


def test_the_index_has_every_page_once() -> None:
    folder = PROJECT / "docs"
    linked = [link for link in A_LINK.findall(text_of(folder / "README.md")) if "#" not in link]
    pages = {path.name for path in folder.glob("*.md")} - {"README.md"}
    assert sorted(link for link in linked if not link.startswith("../")) == sorted([*pages, "measurements/README.md"])


def test_the_index_of_measurements_has_every_page_once() -> None:
    folder = PROJECT / "docs" / "measurements"
    linked = A_LINK.findall(text_of(folder / "README.md"))
    pages = {path.name for path in folder.glob("*.md")} - {"README.md"}
    assert sorted(link for link in linked if link != "scale/") == sorted(pages)


def test_every_room_of_runtime_and_export_has_its_line() -> None:
    told = text_of(PROJECT / "docs" / "architecture.md")
    tables = re.findall(r"^\| (`.+?`) \|", told, re.MULTILINE)
    named = [room for names in tables for room in re.findall(r"`(\w+)`", names)]
    layers = layers_by_container()
    rooms = [room for package in ("lopa.runtime", "lopa.export") for layer in layers[package] for room in layer]
    assert sorted(named) == sorted(rooms)


def test_the_walks_name_files_in_order() -> None:
    told = text_of(PROJECT / "docs" / "architecture.md")
    prompt, checkpoint = told.split("## From a ")[1:]
    for walk, last in ((prompt, "cli/decode/draft_view.py"), (checkpoint, "export/verify/report.py")):
        files = [path for path in A_LINK.findall(walk) if path.endswith(".py")]
        assert len(files) >= 20
        assert (files[0], files[-1]) == ("../src/lopa/cli/main.py", f"../src/lopa/{last}")


def test_docstrings_cite_what_the_specification_has() -> None:
    sections = dict(re.findall(r"^## (\d+)\. .+\n((?:.|\n)+?)(?=^## |\Z)", LOPA, re.MULTILINE))
    quirks = re.findall(r"^(\d+)\. ", sections["9"], re.MULTILINE)
    citing = [path for path in SOURCES if "docs/lopa.md" in text_of(path) and path != Path(__file__)]
    assert len(citing) >= 10
    cited = 0
    for path in citing:
        for numbers, steps, point in A_SECTION.findall(text_of(path)):
            for number in (every := re.findall(r"\d+", numbers)):
                assert number in sections, f"{name_of(path)}: section {number}"
            for step in re.findall("[A-K]", steps):
                assert f"**{step}. " in sections[every[-1]], f"{name_of(path)}: section {every[-1]} {step}"
            assert not point or re.search(rf"^{point}\. ", sections[every[-1]], re.MULTILINE), name_of(path)
            cited += len(every)
        for quirk in re.findall(r"quirk (\d+)", text_of(path)):
            assert quirk in quirks, f"{name_of(path)}: quirk {quirk}"
            cited += 1
    assert cited >= 15


def test_nothing_cites_a_page_that_is_not_here() -> None:
    for path in SOURCES:
        if path != Path(__file__):
            assert "lopa_semantics" not in text_of(path)


def test_the_page_of_the_package_needs_no_checkout() -> None:
    project = tomllib.loads(text_of(PROJECT / "pyproject.toml"))["project"]
    links = A_LINK.findall(text_of(PROJECT / project["readme"]))
    assert links
    assert all(link.startswith("https://") for link in links)
