"""The diagram of the architecture page matches layers.toml, which import-linter enforces."""

from tools.checks.picture import PAGE, diagram_from_layers, page_with_diagram


def test_the_page_shows_the_current_layers() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.count("```mermaid\n") == 1
    assert page_with_diagram(page) == page, "run python -m tools.checks.picture"


def test_a_package_with_layers_and_one_without() -> None:
    layers = {"": [["lopa.a"], ["b"]], "lopa.a": [["x", "y"], ["z"]]}
    assert diagram_from_layers(layers).splitlines() == [
        "flowchart LR",
        *('subgraph a["a/"]', "direction TB", 'a0["x<br>y"] --> a1["z"]', "end"),
        'b["b/"]',
        "a --> b",
    ]
