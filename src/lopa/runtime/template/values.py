"""Values of chat templates in addition to text, numbers, lists and mappings. This module does not depend on syntax."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Undefined, nodes


@dataclass(eq=False)
class Scope:
    """Names with their values. Names of the outer scope are visible."""

    values: dict[str, Any]
    outer: "Scope | None" = None

    def find(self, name: str) -> Any:
        """Return the value of `name`, or an undefined value."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        return Undefined(name=name)


@dataclass(eq=False)
class Namespace:
    """Result of `namespace(...)`, the only value that a template can change from an inner scope."""

    values: dict[str, Any]


@dataclass(eq=False)
class Function:
    """Function or method of a template; `run` takes the arguments of the call."""

    name: str
    run: Callable[..., Any]


@dataclass(eq=False)
class Macro:
    """Macro or body of a call block, with its defining scope."""

    name: str
    arguments: Sequence[str]
    defaults: Sequence[nodes.Expr]
    body: Sequence[nodes.Node]
    scope: Scope


@dataclass(eq=False)
class Loop:
    """Variable `loop` inside a `for`."""

    items: Sequence[Any]
    depth: int
    index0: int = 0

    def attribute(self, name: str) -> Any:
        """Return the value of loop.NAME, or an undefined value for unknown names."""
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
