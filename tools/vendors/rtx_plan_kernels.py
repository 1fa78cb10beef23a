"""Says which kernels plans of TensorRT for RTX hold, without a GPU: attention, products and the types they multiply.

Usage: python -m tools.vendors.rtx_plan_kernels PLAN..

A plan built with detailed profiling verbosity, as ours are, holds its compiler's programs as text: a line for each
tensor, product and kernel with the ONNX layers that it came from. NVIDIA does not document that text; what is read here
was seen in plans of 1.7.1, and a plan in which nothing of it is found is refused.
"""

import mmap
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

_PROGRAM = re.compile(rb"header \{\n[^\0]*")
_TENSOR = re.compile(r'(?:sub_)?tensor=\{.*? name="([^"]+)".* type=(\w+) \}')
_PRODUCT = re.compile(r'fully_connected=\{.*? output=\{"([^"]+)".*? input=\{"([^"]+)" "([^"]+)".* layers="([^"]*)"')
_FUSED_ATTENTION = re.compile(r"function=\{ name=(\S*mha\S*) ")
_LAYER = re.compile(r"\[ONNX Layer: ([^\]]*)\]")
_ATTENTION = "/Attention"
"""Ends the name of every such layer in a graph without plugins."""
_COLUMNS = ("plan", "fused attention", "products of Attention", "other products")
HEADER = (f"| {' | '.join(_COLUMNS)} |", "|" + "---|" * len(_COLUMNS))


@dataclass(frozen=True)
class PlanKernels:
    """What one plan holds, over all its profiles."""

    fused_attention: Counter[str]
    """Kernels that are an attention as a whole, by name."""
    attention_products: Counter[str]
    """Products that are a part of one, by the types that they multiply and give."""
    other_products: Counter[str]
    """With weights, by the same."""

    def row(self, name: str) -> str:
        """In Markdown, under HEADER."""
        cells = (
            ", ".join(f"{count} {what}" for what, count in counted.most_common()) or "none"
            for counted in (self.fused_attention, self.attention_products, self.other_products)
        )
        return f"| {name} | {' | '.join(cells)} |"


def kernels_of_plan(path: Path) -> PlanKernels:
    """Read the plan's own text. Raises click.ClickException when it has none."""
    found = PlanKernels(Counter(), Counter(), Counter())
    if path.stat().st_size:  # an empty file cannot be mapped
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as plan:
            for program in _PROGRAM.finditer(plan):
                _count(program[0].decode("latin-1").split("\n"), found)
    if not found.other_products:
        raise click.ClickException(f"{path}: no product is named in it, expected a plan by TensorRT for RTX 1.7.1")
    return found


def _count(lines: list[str], found: PlanKernels) -> None:
    """One program: the names of its tensors are its own."""
    types = {match[1]: match[2] for match in _matches(_TENSOR, lines)}
    for match in _matches(_PRODUCT, lines):
        result, left, right, layers = match.groups()
        products = found.attention_products if _only_attention(layers) else found.other_products
        products[f"{types[left]} x {types[right]} = {types[result]}"] += 1
    found.fused_attention.update(match[1] for match in _matches(_FUSED_ATTENTION, lines))


def _matches(pattern: re.Pattern[str], lines: list[str]) -> Iterator[re.Match[str]]:
    for line in lines:
        match = pattern.search(line)
        if match:
            yield match


def _only_attention(layers: str) -> bool:
    names = _LAYER.findall(layers)
    return bool(names) and all(name.endswith(_ATTENTION) for name in names)


@click.command()
@click.argument("plans", type=click.Path(path_type=Path, exists=True, dir_okay=False), nargs=-1, required=True)
def main(plans: tuple[Path, ...]) -> None:
    """Print a row for each of PLANS."""
    click.echo("\n".join(HEADER))
    for plan in plans:
        click.echo(kernels_of_plan(plan).row(plan.stem))


if __name__ == "__main__":
    main()
