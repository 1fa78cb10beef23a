"""An immutable, hashable mapping of option names to values."""

from collections.abc import Iterator, Mapping
from typing import Any


class FrozenOptions(Mapping[str, Any]):
    """An immutable mapping of names to bool, int, float or str, equal to any mapping with the same items."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return repr(self._values)
