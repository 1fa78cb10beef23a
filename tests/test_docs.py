"""Pages are consistent with the project: links, navigation, named files and modules, command lines, code blocks."""

import ast
import importlib
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tools.checks import reference
from tools.checks.picture import layers_by_container

from lopa.cli.commands import COMMANDS
from lopa.serve.openai.response_shapes import ERROR_CODES

PROJECT = Path(__file__).resolve().parents[1]
FOLDERS = ("deploy", "docs", "src", "tests", "tools")
PRODUCT = PROJECT / "src" / "lopa"
PACKAGES = sorted(path.parent.name for path in PRODUCT.glob("*/__init__.py"))
SITE = PROJECT / "docs"
SITE_PAGES = sorted(SITE.rglob("*.md"))
OTHER_PAGES = [
    *(PROJECT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted((PROJECT / "tools").glob("*/*.md")),
]
PAGES = OTHER_PAGES + SITE_PAGES
SOURCES = sorted(path for folder in FOLDERS for path in (PROJECT / folder).rglob("*.py"))
ALGORITHM = (SITE / "reference" / "algorithm.md").read_text(encoding="utf-8")

A_PATH = re.compile(rf"(?<![\w/.~:-])(?:\.\./)*(?:{'|'.join([*FOLDERS, *PACKAGES])})/[\w./*-]*[\w/*]")
A_MODULE = re.compile(r"(?<![\w./-])(?:lopa\.(?:runtime|export|cli|bench|serve|plugins|tiny)|tools)(?:\.[a-z_]\w*)+")
A_LINK = re.compile(r"\]\(([^)\s]+)\)")
A_SECTION = re.compile(r"sections? (\d+(?:(?:,| and|, and) \d+)*)(?: ([A-K](?: and [A-K])*)\b)?(?:, points? (\d))?")


def text_of(path: Path) -> str:
    """Return a file without shell blocks that run a program of another commit."""
    return re.sub(r"^git worktree add [^`]+", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)


def name_of(path: Path) -> str:
    return str(path.relative_to(PROJECT))


def headings(page: str) -> set[str]:
    """Return the anchors that a forge makes of a page's headings."""
    titles = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {
        re.sub(r"[^\w -]", "", re.sub(r"\[(.+?)\]\(.+?\)", r"\1", title).lower()).replace(" ", "-") for title in titles
    }


def test_paths_that_are_named_exist() -> None:
    """Check pages and all source files: docstrings, comments and messages."""
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


def entries_of_navigation() -> list[str]:
    """Return the pages of the toctrees in docs/index.md, without their suffix."""
    trees = re.findall(r"^```{toctree}\n(.*?)^```", text_of(SITE / "index.md"), re.MULTILINE | re.DOTALL)
    return [line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]


def test_the_navigation_has_every_page_once() -> None:
    pages = [str(path.relative_to(SITE).with_suffix("")) for path in SITE_PAGES if path != SITE / "index.md"]
    assert sorted(entries_of_navigation()) == sorted(pages)


@pytest.mark.parametrize(
    "page",
    [page for page in SITE_PAGES if page.parent.name in ("get-started", "how-to", "concepts", "reference")],
    ids=name_of,
)
def test_a_page_starts_with_what_the_reader_will_be_able_to_do(page: Path) -> None:
    title, _, opening, *_ = text_of(page).split("\n")
    assert title.startswith("# ")
    assert opening.startswith("After this page you "), opening


def test_the_site_has_a_place_for_the_link_to_its_page() -> None:
    """`make docs` puts a page of the embedded model into the site, and its link in place of a marker."""
    marker = re.search('^PAGE_MARKER = "(.+)"$', text_of(SITE / "conf.py"), re.MULTILINE)
    assert marker is not None
    assert text_of(SITE / "how-to" / "browser.md").count(f"\n{marker[1]}\n") == 1


@pytest.mark.parametrize("page", SITE_PAGES, ids=name_of)
def test_a_page_of_the_site_links_to_no_folder(page: Path) -> None:
    """Sphinx copies files outside docs/ into the site, and no folders."""
    for link in A_LINK.findall(text_of(page)):
        if not link.startswith(("https://", "#")):
            assert (page.parent / link.partition("#")[0]).is_file(), link


def code_blocks(page: str, language: str) -> list[str]:
    """Return the fenced blocks of a language, dedented."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", page, re.MULTILINE | re.DOTALL)
    return ["\n".join(line.removeprefix(indent) for line in block.split("\n")) for indent, block in found]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_of_pages_parses(page: Path) -> None:
    for block in code_blocks(text_of(page), "python"):
        compile(block, name_of(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for block in code_blocks(text_of(page), "json"):
        json.loads(block)
    for block in code_blocks(text_of(page), "toml"):
        tomllib.loads(block)


def command_lines(page: str) -> Iterator[list[str]]:
    """Yield the words of every lopa-export command in shell blocks and in inline code, without pipes and comments."""
    blocks = "\n".join(code_blocks(page, "sh")).replace("\\\n", " ")
    lines = re.findall(r"(?:\"[^\"]*\"|'[^']*'|[^\"'\n])+", blocks)
    for line in lines + [code.replace("\\|", "|") for code in re.findall(r"`(lopa-export [^`]+)`", page)]:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("();<>|&"):
                if "lopa-export" in words and "podman" not in words:
                    yield words[words.index("lopa-export") + 1 :]
                words = []
            else:
                words.append(word)


def unknown_part(words: list[str]) -> str | None:
    """Return the first command or option in `words` that lopa-export lacks."""
    if not words or words[0].startswith("-") or words[0] in ("COMMAND", "..."):
        return None
    if words[0] not in COMMANDS:
        return words[0]
    command = importlib.import_module(COMMANDS[words[0]]).command
    rest = words[1:]
    context = click.Context(command)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        subcommand = command.get_command(context, rest[0])
        if subcommand is None:
            return rest[0]
        command, rest = subcommand, rest[1:]
    known = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    known |= {"--help", "--help-all", "-h", "--quiet", "-q", "--verbose", "-v"}
    return next(
        (word for word in rest if word.startswith("-") and len(word) > 1 and word.split("=")[0] not in known), None
    )


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=name_of)
def test_commands_and_options_of_pages_exist(page: Path) -> None:
    for words in command_lines(text_of(page)):
        assert unknown_part(words) is None, (
            f"{name_of(page)}: lopa-export {' '.join(words)} has no {unknown_part(words)}"
        )


def test_an_unknown_command_or_option_is_found() -> None:
    assert unknown_part(["generat", "BUNDLE"]) == "generat"
    assert unknown_part(["generate", "BUNDLE", "--branchs", "4"]) == "--branchs"
    assert unknown_part(["generate", "BUNDLE", "--branches", "4"]) is None
    assert list(command_lines('```sh\nlopa-export generate B "a\nb" --x  # why\n```')) == [
        ["generate", "B", "a\nb", "--x"]
    ]


def test_the_page_of_http_has_every_error_code() -> None:
    section = text_of(SITE / "reference" / "http.md").partition("\n## Errors\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[2] for line in section.splitlines() if re.match(r"\| \d", line)]
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(ERROR_CODES)


def test_generated_tables_match_the_code() -> None:
    pages = [page for page in sorted(SITE.rglob("*.md")) if "<!-- generated: " in text_of(page)]
    assert [page.name for page in pages] == ["deploy.md", "commands.md", "http.md", "python.md"]
    for page in pages:
        assert reference.text_with_tables(text_of(page)) == text_of(page), f"run python -m {reference.__name__}"
    commands = text_of(SITE / "reference" / "commands.md")
    assert all(f"### {name}\n" in commands for name in COMMANDS)
    assert "| `--json-schema" not in commands, "decoding options have a table of their own"
    assert commands.count("All [decoding options](#decoding-options) as well.") == 3, "generate, fill and chat"
    for own in ("--seed INTEGER RANGE", "--preset NAME", "--branches INTEGER"):  # named like decoding options
        assert f"| `{own}` |" in commands
    assert "| `POST /v1/chat/completions` |" in text_of(SITE / "reference" / "http.md")


def test_every_module_of_runtime_and_export_has_its_line() -> None:
    page = text_of(PROJECT / "ARCHITECTURE.md")
    tables = re.findall(r"^\| (`.+?`) \|", page, re.MULTILINE)
    named = [module for names in tables for module in re.findall(r"`(\w+)`", names)]
    layers = layers_by_container()
    modules = [each for package in ("lopa.runtime", "lopa.export") for layer in layers[package] for each in layer]
    assert sorted(named) == sorted(modules)


def test_docstrings_cite_existing_sections_of_the_specification() -> None:
    sections = dict(re.findall(r"^## (\d+)\. .+\n((?:.|\n)+?)(?=^## |\Z)", ALGORITHM, re.MULTILINE))
    quirks = re.findall(r"^(\d+)\. ", sections["9"], re.MULTILINE)
    citing = [path for path in SOURCES if "docs/reference/algorithm.md" in text_of(path) and path != Path(__file__)]
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


def test_the_page_of_the_package_needs_no_checkout() -> None:
    project = tomllib.loads(text_of(PROJECT / "pyproject.toml"))["project"]
    links = A_LINK.findall(text_of(PROJECT / project["readme"]))
    assert links
    assert all(link.startswith("https://") for link in links)
