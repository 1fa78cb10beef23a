"""Draw layers.toml as the Mermaid diagram of ARCHITECTURE.md: `python -m tools.checks.picture`."""

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PAGE = PROJECT / "ARCHITECTURE.md"
_LAYERS = PROJECT / "tools" / "checks" / "layers.toml"
_DIAGRAM = re.compile(r"(?<=```mermaid\n).*?(?=```)", re.DOTALL)

Layers = list[list[str]]
"""Modules side by side, the layer that may import all others first."""


def layers_by_container() -> dict[str, Layers]:
    """Return the layers of every package that has a list, and under "" the packages themselves."""
    contracts = tomllib.loads(_LAYERS.read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    return {
        each.get("containers", [""])[0]: [re.split(r" \| ", layer) for layer in each["layers"]]
        for each in contracts
        if each["type"] == "layers"
    }


def diagram_from_layers(layers: dict[str, Layers]) -> str:
    """Return a box for every package, left of the packages that it may import, with a box for each of its layers."""
    lines = ["flowchart LR"]
    packages = [package for layer in layers[""] for package in layer]
    for package in packages:
        name = package.removeprefix("lopa.")
        boxes = [f'{name}{i}["{"<br>".join(layer)}"]' for i, layer in enumerate(layers.get(package, []))]
        inside = ["direction TB", " --> ".join(boxes), "end"]
        lines += [f'subgraph {name}["{name}/"]', *inside] if boxes else [f'{name}["{name}/"]']
    lines.append(" --> ".join(package.removeprefix("lopa.") for package in packages))
    return "\n".join(lines) + "\n"


def page_with_diagram(page: str) -> str:
    """Return the text of the page with the current diagram."""
    return _DIAGRAM.sub(lambda _: diagram_from_layers(layers_by_container()), page)


if __name__ == "__main__":
    PAGE.write_text(page_with_diagram(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
