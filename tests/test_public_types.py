"""Every type in a public signature is public: exported by lopa and listed in docs/reference/python.md."""

import dis
import inspect
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, get_args, get_type_hints

import pytest

import lopa

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
PUBLIC = {name: getattr(lopa, name) for name in lopa.__all__}
OPAQUE = {"Manifest", "Session", "Step"}
"""Types exported only for annotations; docs/reference/python.md lists their public members."""


def lopa_types(annotation: Any) -> Iterator[type]:
    """Return the classes of this project in an annotation, at any depth."""
    if isinstance(annotation, type) and annotation.__module__.partition(".")[0] == "lopa":
        yield annotation
    for part in annotation if isinstance(annotation, list) else get_args(annotation):
        yield from lopa_types(part)


def hints_of_call(name: str, call: Any) -> Iterator[tuple[str, Any]]:
    hints = get_type_hints(call)
    for parameter in inspect.signature(call).parameters.values():
        if parameter.name not in ("self", "cls"):
            assert parameter.name in hints, f"{name}: {parameter.name} has no type"
    assert "return" in hints, f"{name} has no return type"
    yield from ((f"{name}: {each}", hint) for each, hint in hints.items() if not each.startswith("_"))


def hints_of_class(name: str, kind: type) -> Iterator[tuple[str, Any]]:
    """Return the annotations of public members, including inherited ones. Private names begin with an underscore."""
    fields = get_type_hints(kind)
    yield from ((f"{name}.{each}", hint) for each, hint in fields.items() if not each.startswith("_"))
    parameters: set[str] = set()
    if inspect.isfunction(kind.__init__) and Protocol not in kind.__mro__:
        yield from hints_of_call(f"{name}.__init__", kind.__init__)
        parameters = set(inspect.signature(kind.__init__).parameters)
        stored = {each.argval for each in dis.get_instructions(kind.__init__) if each.opname == "STORE_ATTR"}
        untyped = {each for each in stored - set(fields) - parameters if not each.startswith("_")}
        assert not untyped, f"{name}: attributes without a type {untyped}"
    for each, member in inspect.getmembers_static(kind):
        if each.startswith("_"):
            continue
        if isinstance(member, (property, cached_property)):
            call = member.fget if isinstance(member, property) else member.func
            yield from hints_of_call(f"{name}.{each}", call)
        elif isinstance(member, (staticmethod, classmethod)):
            yield from hints_of_call(f"{name}.{each}", member.__func__)
        elif inspect.isfunction(member) and member.__module__.startswith("lopa."):
            yield from hints_of_call(f"{name}.{each}", member)


def private_types(name: str, value: Any) -> list[str]:
    """Return the places in public signatures that use a private type."""
    if isinstance(value, type):
        hints = hints_of_class(name, value)
    elif inspect.isfunction(value):
        hints = hints_of_call(name, value)
    else:
        hints = iter([(name, value)])
    public = list(PUBLIC.values())
    return [f"{place} is a {each.__name__}" for place, hint in hints for each in lopa_types(hint) if each not in public]


@pytest.mark.parametrize("name", sorted(PUBLIC.keys() - OPAQUE))
def test_types_of_public_signatures_are_public(name: str) -> None:
    assert not private_types(name, PUBLIC[name])


def test_a_private_type_is_found() -> None:
    """Classes exported only for annotations stand for private types."""
    assert "Step.branches is a Branch" in private_types("Step", PUBLIC["Step"])
    assert all(private_types(name, PUBLIC[name]) for name in OPAQUE)


def test_every_public_call_and_class_has_a_docstring() -> None:
    for name, value in PUBLIC.items():
        if isinstance(value, type):
            assert value.__doc__, name
            members = [
                each for each in vars(value).items() if not each[0].startswith("_") and inspect.isroutine(each[1])
            ]
            assert all(inspect.getdoc(getattr(value, each)) for each, _ in members if each != "generate"), name


def test_the_page_lists_the_public_names() -> None:
    section = re.search(r"## Python names\n(.*?)\n## ", PAGE, re.DOTALL)
    assert section is not None
    rows = re.findall(r"^\| (`.+?`) \|", section[1], re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(lopa.__all__)
    for name in OPAQUE:
        assert f"`{name}`" in section[1]
