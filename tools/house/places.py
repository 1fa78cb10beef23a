"""Where the boxes and arrows of one package go: lines of boxes, arrows downwards and around boxes. Knows no drawing.

Sugiyama's way: an arrow that passes a line gets a place there like a box, the order of each line is sorted by
neighbours until few arrows cross, and places are pulled towards neighbours. Nothing in it is random.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from tools.house.imports import Arrow, Lines

_GAP = 26.0
_LANE = 4.0
"""Width of an arrow where it passes a line."""
_SWEEPS = 24
_STRAIGHT = 6
"""How much more an arrow is pulled towards itself on the next line than a box towards its neighbours."""

Node = str | tuple[str, str, int]
"""A room, or an arrow (importer, imported) on the line that it passes."""


@dataclass(frozen=True)
class Places:
    """Middles of boxes, in units of the picture; `lines` are counted from the top."""

    middles: dict[str, float]
    lines: dict[str, int]
    routes: dict[Arrow, tuple[float, ...]]
    """For each arrow the middles that it has on every line from its importer's to that of what is imported."""


def places_from_lines(
    lines: Lines, arrows: frozenset[Arrow], *, width: float, width_of: Callable[[str], float]
) -> Places:
    """Places within `width` of rooms that are `width_of` wide. Every arrow leads down."""
    line_of = {room: number for number, line in enumerate(lines) for room in line}
    routes = {arrow: _nodes_of_arrow(arrow, line_of) for arrow in sorted(arrows)}
    rows: list[list[Node]] = [list(line) for line in lines]
    for route in routes.values():
        for node in route[1:-1]:
            assert not isinstance(node, str)
            rows[node[2]].append(node)
    links = [pair for route in routes.values() for pair in pairwise(route)]
    rows = _with_few_crossings(rows, links)
    widths = {node: width_of(node) if isinstance(node, str) else _LANE for row in rows for node in row}
    middles = _pulled_to_neighbours(rows, links, widths, width)
    return Places(
        middles={room: middles[room] for room in line_of},
        lines=line_of,
        routes={arrow: tuple(middles[node] for node in route) for arrow, route in routes.items()},
    )


def _nodes_of_arrow(arrow: Arrow, line_of: Mapping[str, int]) -> list[Node]:
    start, end = arrow
    return [start, *((start, end, line) for line in range(line_of[start] + 1, line_of[end])), end]


def _with_few_crossings(rows: list[list[Node]], links: list[tuple[Node, Node]]) -> list[list[Node]]:
    """`rows` in the best order that sweeps by the mean of neighbours come by."""
    best, fewest = rows, _crossings(rows, links)
    for sweep in range(_SWEEPS):
        downwards = sweep % 2 == 0
        toward = _neighbours((b, a) if downwards else (a, b) for a, b in links)
        ordered = [list(row) for row in rows]
        for number in range(1, len(rows)) if downwards else range(len(rows) - 2, -1, -1):
            place = {node: i for i, node in enumerate(ordered[number - 1 if downwards else number + 1])}
            own = {node: i * len(place) / len(ordered[number]) for i, node in enumerate(ordered[number])}
            ordered[number].sort(key=lambda node: _mean([place[n] for n in toward.get(node, [])], own[node]))
        rows = ordered
        crossings = _crossings(rows, links)
        if crossings < fewest:
            best, fewest = rows, crossings
    return best


def _crossings(rows: list[list[Node]], links: list[tuple[Node, Node]]) -> int:
    place = {node: (number, i) for number, row in enumerate(rows) for i, node in enumerate(row)}
    ends = [(place[a], place[b]) for a, b in links]
    return sum(
        a[0] == c[0] and (a[1] - c[1]) * (b[1] - d[1]) < 0
        for i, (a, b) in enumerate(ends)
        for c, d in ends[i + 1 :]
    )  # fmt: skip


def _pulled_to_neighbours(
    rows: list[list[Node]], links: list[tuple[Node, Node]], widths: Mapping[Node, float], width: float
) -> dict[Node, float]:
    weighted = [link for link in links for _ in range(1 if any(isinstance(end, str) for end in link) else _STRAIGHT)]
    neighbours = _neighbours([*weighted, *((b, a) for a, b in weighted)])
    middles: dict[Node, float] = {}
    for row in rows:
        middles |= _spread(row, dict.fromkeys(row, width / 2), widths, width)
    for _ in range(_SWEEPS):
        for row in (*rows, *reversed(rows)):
            wished = {node: _mean([middles[n] for n in neighbours.get(node, [])], middles[node]) for node in row}
            middles |= _spread(row, wished, widths, width)
    least = min((middle - widths[node] / 2 for node, middle in middles.items()), default=0.0)
    most = max((middle + widths[node] / 2 for node, middle in middles.items()), default=0.0)
    return {node: middle + (width - least - most) / 2 for node, middle in middles.items()}


def _spread(
    row: list[Node], wished: Mapping[Node, float], widths: Mapping[Node, float], width: float
) -> dict[Node, float]:
    """Middles as near to `wished` as order and distance allow: nodes that want too near together stand as one group."""
    offsets: list[float] = []
    groups: list[tuple[float, int]] = []
    """Mean of wished middle minus offset, and number of nodes."""
    for i, node in enumerate(row):
        before = row[i - 1]
        offsets.append(offsets[-1] + (widths[before] + widths[node]) / 2 + _GAP if i else 0.0)
        mean, count = wished[node] - offsets[i], 1
        while groups and groups[-1][0] >= mean:
            other, others = groups.pop()
            mean, count = (mean * count + other * others) / (count + others), count + others
        groups.append((mean, count))
    shifts = [mean for mean, count in groups for _ in range(count)]
    least, most = widths[row[0]] / 2, width - widths[row[-1]] / 2 - offsets[-1]
    return {node: offset + min(max(s, least), most) for node, offset, s in zip(row, offsets, shifts, strict=True)}


def _neighbours(links: Iterable[tuple[Node, Node]]) -> dict[Node, list[Node]]:
    found: dict[Node, list[Node]] = {}
    for a, b in links:
        found.setdefault(a, []).append(b)
    return found


def _mean(values: list[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
