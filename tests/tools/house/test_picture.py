"""The picture of the rooms shows the real imports, and can be read."""

import random
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path

import pytest
from tools.house.imports import PROJECT, Package, house_from_imports, without_detours
from tools.house.picture import PICTURE, svg_from_house
from tools.house.places import places_from_lines

WIDTH = 800.0


def boxes(_: str) -> float:
    """All of one width."""
    return 60.0


@pytest.fixture(scope="module")
def house() -> tuple[Package, ...]:
    return house_from_imports()


def test_the_picture_shows_the_imports_of_today(house: tuple[Package, ...]) -> None:
    assert PICTURE.read_text(encoding="utf-8") == svg_from_house(house), "run python -m tools.house.picture"


def test_it_names_every_room(house: tuple[Package, ...]) -> None:
    drawn = {text.text for text in ElementTree.parse(PICTURE).iter("{http://www.w3.org/2000/svg}text")}
    for package in house:
        assert {room for line in package.lines for room in line} <= drawn


def test_imports_are_found(house: tuple[Package, ...]) -> None:
    of = {package.name: package for package in house}
    assert ("algorithm", "sessions") in of["lopa.runtime"].arrows
    assert of["lopa.runtime"].imports == of["lopa.tiny"].imports == ()
    assert "lopa.runtime" in of["lopa.cli"].imports


def test_rooms_without_a_list_lie_above_what_they_import(house: tuple[Package, ...]) -> None:
    plugins = next(package for package in house if package.name == "lopa.plugins")
    line_of = {room: number for number, line in enumerate(plugins.lines) for room in line}
    assert line_of["tensorrt_plugins"] < line_of["kernels"] < line_of["launch_sizes"]


def test_an_arrow_that_a_way_says_too_is_left_out() -> None:
    drawn = without_detours(frozenset({("a", "b"), ("b", "c"), ("c", "d"), ("a", "d"), ("a", "c"), ("e", "d")}))
    assert drawn == {("a", "b"), ("b", "c"), ("c", "d"), ("e", "d")}


def test_places_keep_apart_and_inside() -> None:
    chance = random.Random(12)
    for _ in range(50):
        lines = tuple(tuple(f"{i}.{j}" for j in range(chance.randint(1, 5))) for i in range(6))
        rooms = [room for line in lines for room in line]
        pairs = [(a, b) for a in rooms for b in rooms if a[0] < b[0]]
        arrows = frozenset(chance.sample(pairs, min(6, len(pairs))))
        places = places_from_lines(lines, arrows, width=WIDTH, width_of=boxes)
        for line in lines:
            middles = sorted(places.middles[room] for room in line)
            assert all(b - a > 60 for a, b in pairwise(middles))
            assert middles[0] >= 30
            assert middles[-1] <= WIDTH - 30
        for (start, end), route in places.routes.items():
            assert (route[0], route[-1]) == (places.middles[start], places.middles[end])
            assert len(route) == places.lines[end] - places.lines[start] + 1
            for passed, middle in zip(lines[places.lines[start] + 1 : places.lines[end]], route[1:-1], strict=True):
                assert all(abs(places.middles[room] - middle) > 30 for room in passed), "an arrow runs through a box"


def test_two_arrows_that_need_not_cross_do_not() -> None:
    places = places_from_lines(
        (("a", "b"), ("c", "d")), frozenset({("a", "d"), ("b", "c")}), width=WIDTH, width_of=boxes
    )
    at = places.middles
    assert (at["a"] - at["b"]) * (at["d"] - at["c"]) > 0


def test_the_program_draws_it_again(tmp_path: Path) -> None:
    drawn = tmp_path / "drawn.svg"
    subprocess.run([sys.executable, "-m", "tools.house.picture", drawn], cwd=PROJECT, check=True)
    assert drawn.read_bytes() == PICTURE.read_bytes()
