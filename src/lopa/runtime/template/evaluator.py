"""What filters and tests may ask of the run that they are part of; they know no more of it."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from lopa.runtime.template.budget import Budget


class Evaluator(Protocol):
    """A run (lopa.runtime.template.operations), as filters and tests see it."""

    @property
    def budget(self) -> Budget:
        """Of this rendering."""

    def filtered(self, name: str, value: Any, values: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """`value` through the filter `name`."""

    def tested(self, name: str, value: Any, values: Sequence[Any], named: Mapping[str, Any]) -> bool:
        """Whether `value` passes the test `name`."""

    def items(self, value: Any) -> list[Any]:
        """What a for over `value` goes through."""

    def item(self, value: Any, key: Any) -> Any:
        """value[key], undefined where there is none."""

    def added(self, left: Any, right: Any) -> Any:
        """Left + right."""
