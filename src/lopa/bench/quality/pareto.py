"""Pareto front: the points that no other point dominates."""

from collections.abc import Sequence


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indices of the points (speed, score) on the front, by rising speed.

    A point dominates another if it is at least equal in speed and score, and better in one of them.
    """
    front: list[int] = []
    best = float("-inf")
    order = sorted(range(len(points)), key=lambda i: points[i], reverse=True)
    for i in order:
        speed, score = points[i]
        if score > best or (front and points[front[-1]] == (speed, score)):
            front.append(i)
            best = max(best, score)
    return front[::-1]
