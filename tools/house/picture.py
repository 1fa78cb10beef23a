"""Draws docs/architecture.svg: `python -m tools.house.picture`. The same imports give the same bytes."""

import sys
from itertools import pairwise
from pathlib import Path

from tools.house.imports import PROJECT, Arrow, Package, house_from_imports, without_detours
from tools.house.places import Places, places_from_lines

PICTURE = PROJECT / "docs" / "architecture.svg"
PURPOSES = {
    "tools": "for developers",
    "cli": "the command lopa-export",
    "bench": "measurements, gears",
    "serve": "a bundle over HTTP",
    "export": "checkpoint to bundle",
    "plugins": "kernels for engines",
    "runtime": "bundle to text",
    "tiny": "the embedded model",
}
_COLOURS = ("#8a8f98", "#b4652f", "#b5476b", "#a3862a", "#3f8f5a", "#3a8c8c", "#3b6fb5", "#8a5aa8")
"""One for each package, dark enough for white words on it."""

_WIDTH, _MARGIN, _LABELS = 1000, 12, 190
_BOX, _LINE, _PADDING = 24, 46, 14
"""Heights of a box and of a line with its gap, and what a band has above and below its boxes."""
_LETTER = 7.8
"""Width of a letter at 13 px, rounded up: fonts differ."""


def svg_from_house(packages: tuple[Package, ...]) -> str:
    """The picture of `packages`, one band each, the first on top, on white: it is to be read on dark pages too."""
    bands: list[str] = []
    top = _MARGIN
    for package, colour in zip(packages, _COLOURS, strict=True):
        height = max(len(package.lines) * _LINE - (_LINE - _BOX) + 2 * _PADDING, 4 * 17 + 8)
        bands += _band(package, colour, top, height)
        top += height + 8
    height = top - 8 + _MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="Helvetica, Arial, sans-serif" font-size="13">'
    )
    tip = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0.5 L8,4 L0,7.5 z" fill="#4a4f57"/></marker></defs>'
    )
    ground = f'<rect width="{_WIDTH}" height="{height}" rx="10" fill="#ffffff"/>'
    return "\n".join([head, "<title>The rooms of lopa-export</title>", tip, ground, *bands, "</svg>", ""])


def _band(package: Package, colour: str, top: int, height: int) -> list[str]:
    name = package.name.removeprefix("lopa.")
    left, width = _MARGIN, _WIDTH - 2 * _MARGIN
    drawn = [
        f'<rect x="{left}" y="{top}" width="{width}" height="{height}" rx="6" fill="{colour}" fill-opacity="0.1"/>',
        f'<rect x="{left}" y="{top}" width="5" height="{height}" fill="{colour}"/>',
        f'<text x="{left + 16}" y="{top + 24}" font-size="17" font-weight="bold" fill="#1d2026">{name}/</text>',
        _small(PURPOSES[name], left + 16, top + 42),
    ]
    imports = [other.removeprefix("lopa.") for other in package.imports]
    if imports:
        drawn.append(_small("imports", left + 16, top + 59))
        drawn.append(_small(", ".join(imports), left + 16, top + 74))
    places = places_from_lines(
        package.lines,
        without_detours(package.arrows),
        width=_WIDTH - _LABELS - 3 * _MARGIN,
        width_of=_box_width,
    )
    origin = _LABELS + _MARGIN
    # Arrows first: a box lies over what ends in it.
    drawn += [_arrow(arrow, places, origin, top + _PADDING) for arrow in places.routes]
    for room, line in places.lines.items():
        drawn += _box(room, origin + places.middles[room], top + _PADDING + line * _LINE, colour)
    return drawn


def _box(room: str, middle: float, top: int, colour: str) -> list[str]:
    width = _box_width(room)
    return [
        f'<rect x="{middle - width / 2:.1f}" y="{top}" width="{width:.1f}" height="{_BOX}" rx="4" fill="{colour}"/>',
        f'<text x="{middle:.1f}" y="{top + 16.5}" text-anchor="middle" fill="#ffffff">{room}</text>',
    ]


def _box_width(room: str) -> float:
    return len(room) * _LETTER + 14


def _arrow(arrow: Arrow, places: Places, left: int, top: int) -> str:
    """From the lower edge of the importer's box to the upper edge of the other, in curves between lines."""
    first = places.lines[arrow[0]]
    route = [left + middle for middle in places.routes[arrow]]
    path = f"M{route[0]:.1f},{top + first * _LINE + _BOX}"
    for number, (before, after) in enumerate(pairwise(route), start=first):
        upper, lower = top + number * _LINE + _BOX, top + (number + 1) * _LINE
        middle = (upper + lower) / 2
        path += f" C{before:.1f},{middle} {after:.1f},{middle} {after:.1f},{lower}"
        if number + 1 < places.lines[arrow[1]]:
            path += f" V{lower + _BOX}"
    return f'<path d="{path}" fill="none" stroke="#4a4f57" stroke-width="1.2" marker-end="url(#tip)"/>'


def _small(words: str, left: int, baseline: int) -> str:
    return f'<text x="{left}" y="{baseline}" font-size="12" fill="#4a4f57">{words}</text>'


def main(arguments: list[str]) -> None:
    """Write the picture to the path that is given, else to its place in docs/."""
    sys.path.insert(0, str(PROJECT / "src"))  # this checkout's, whichever one the environment has installed
    path = Path(arguments[0]) if arguments else PICTURE
    path.write_text(svg_from_house(house_from_imports()), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
