"""What a chat template can hold beside text, numbers, lists and mappings. Knows no syntax."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Undefined, nodes


@dataclass(eq=False)
class Scope:
    """Names and values; those of the outer scope are seen through it."""

    values: dict[str, Any]
    outer: "Scope | None" = None

    def find(self, name: str) -> Any:
        """The value of `name`, undefined where nothing gave it one."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        return Undefined(name=name)


@dataclass(eq=False)
class Namespace:
    """What `namespace(...)` makes: the one thing that a template may change from an inner scope."""

    values: dict[str, Any]


@dataclass(eq=False)
class Function:
    """Something to call by name or as a method; takes the values of the call."""

    name: str
    run: Callable[..., Any]


@dataclass(eq=False)
class Macro:
    """A macro, or the body of a call block, with the scope in which it was written."""

    name: str
    arguments: Sequence[str]
    defaults: Sequence[nodes.Expr]
    body: Sequence[nodes.Node]
    scope: Scope


@dataclass(eq=False)
class Loop:
    """`loop` inside a for."""

    items: Sequence[Any]
    depth: int
    index0: int = 0

    def attribute(self, name: str) -> Any:
        """The value of loop.NAME; undefined for a name that a loop does not have."""
        count, at = len(self.items), self.index0
        found: Mapping[str, Callable[[], Any]] = {
            "index": lambda: at + 1,
            "index0": lambda: at,
            "revindex": lambda: count - at,
            "revindex0": lambda: count - at - 1,
            "first": lambda: at == 0,
            "last": lambda: at == count - 1,
            "length": lambda: count,
            "depth": lambda: self.depth,
            "depth0": lambda: self.depth - 1,
            "previtem": lambda: self.items[at - 1] if at else Undefined("there is no previous item"),
            "nextitem": lambda: self.items[at + 1] if at + 1 < count else Undefined("there is no next item"),
            "cycle": lambda: Function("cycle", lambda *values: values[at % len(values)]),
        }
        return found[name]() if name in found else Undefined(obj=self, name=name)
