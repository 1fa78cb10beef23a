"""Protocol that filters and tests use to access a template run."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from lopa.runtime.template.budget import Budget


class Evaluator(Protocol):
    """Interface of a template run (lopa.runtime.template.operations) for filters and tests."""

    @property
    def budget(self) -> Budget:
        """Budget of this rendering."""

    def apply_filter(self, name: str, value: Any, values: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Return `value` after the filter `name`."""

    def apply_test(self, name: str, value: Any, values: Sequence[Any], named: Mapping[str, Any]) -> bool:
        """Return whether `value` passes the test `name`."""

    def items(self, value: Any) -> list[Any]:
        """Return the items that a `for` over `value` visits."""

    def item(self, value: Any, key: Any) -> Any:
        """Return value[key], or an undefined value."""

    def add(self, left: Any, right: Any) -> Any:
        """Return left + right."""
