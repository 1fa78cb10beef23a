"""Short texts that a tiny network learns in minutes: sure answers, answers of many words, and answers of any length."""

import random

_NAMES = ("Tom", "Ann", "Ben", "Eva", "Max", "Lea", "Sam", "Ida")
_THINGS = ("apples", "books", "coins", "stones", "cards", "pens", "eggs", "keys")
_ANIMALS = ("cat", "dog", "bird", "fish", "fox", "bear", "frog", "horse")
_VERBS = ("sleeps", "runs", "sings", "waits", "eats", "hides", "jumps", "drinks")
_PLACES = ("in the garden", "by the river", "on the roof", "under a tree", "at night", "in the rain")


def conversation(chance: random.Random) -> tuple[str, str]:
    """Return a question and its answer."""
    kind, name, thing = chance.randrange(4), chance.choice(_NAMES), chance.choice(_THINGS)
    few, more = chance.randint(1, 9), chance.randint(1, 9)
    if kind == 0:
        return (
            f"{name} has {few} {thing} and gets {more} more. How many {thing} are there?",
            f"{few} and {more} are {few + more}. {name} has {few + more} {thing}.",
        )
    if kind == 1:
        return f"Count from {few} to {few + more}.", ", ".join(map(str, range(few, few + more + 1))) + "."
    if kind == 2:
        words = [chance.choice(_THINGS) for _ in range(few)]
        return f"Repeat: {' '.join(words)}", f"{' '.join(words)}."
    animal = chance.choice(_ANIMALS)
    sentences = (f"The {animal} {chance.choice(_VERBS)} {chance.choice(_PLACES)}." for _ in range(chance.randint(1, 4)))
    return f"Tell me about a {animal}.", " ".join(sentences)
