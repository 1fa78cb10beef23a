"""Small Python functions, generated from a seed, whose body follows from the docstring.

They let the toy complete code in the middle too.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

_LISTS = ("data", "items", "numbers", "nums", "scores", "values")
_LOOPS = ("item", "n", "v", "x")
_TOTALS = ("acc", "out", "result", "total")
_VERBS = ("apply", "compute", "handle", "process", "run", "solve")
_CONDITIONS = {
    "even": ("even", "{v} % 2 == 0"),
    "odd": ("odd", "{v} % 2 != 0"),
    "pos": ("positive", "{v} > 0"),
    "neg": ("negative", "{v} < 0"),
    "gt": ("greater than {k}", "{v} > {k}"),
    "lt": ("less than {k}", "{v} < {k}"),
}
"""Words and code of a condition, by the end of a function's name."""


@dataclass(frozen=True)
class _Goal:
    sentence: str
    start: str
    update: str


_GOALS = {
    "count": _Goal("Count the {items} that are {words}.", "0", "{total} += 1"),
    "sum": _Goal("Add up the {items} that are {words}.", "0", "{total} += {v}"),
    "keep": _Goal("Keep only the {items} that are {words}.", "[]", "{total}.append({v})"),
}


def functions(seed: int) -> Iterator[tuple[str, ...]]:
    """Yield functions without end: the signature, the docstring and each line of the body, each behind a line break."""
    rng = random.Random(seed)
    while True:
        kind, goal = rng.choice(list(_GOALS.items()))
        end, (words, code) = rng.choice(list(_CONDITIONS.items()))
        names = {"items": rng.choice(_LISTS), "v": rng.choice(_LOOPS), "total": rng.choice(_TOTALS)}
        number = rng.randint(2, 9)
        condition = code.format(k=number, **names)
        yield (
            f"def {rng.choice(_VERBS)}_{kind}_{end}({names['items']}):",
            f'\n    """{goal.sentence.format(words=words.format(k=number), **names)}"""',
            f"\n    {names['total']} = {goal.start}",
            f"\n    for {names['v']} in {names['items']}:",
            f"\n        if {condition}:",
            f"\n            {goal.update.format(**names)}",
            f"\n    return {names['total']}\n",
        )
