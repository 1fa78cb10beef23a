"""Steps of which each is taken whatever the others do, such as freeing one thing after another. Knows no device."""

from collections.abc import Callable, Iterable


def take_all(steps: Iterable[Callable[[], object]]) -> None:
    """Take every step; raise the first failure at the end."""
    failures: list[Exception] = []
    for step in steps:
        try:
            step()
        except Exception as error:
            failures.append(error)
    if failures:
        raise failures[0]
