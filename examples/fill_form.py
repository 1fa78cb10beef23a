"""Fill the fields of a form, all at once: python examples/fill_form.py BUNDLE

Every field is a hole, and each sees the text of the whole form. This needs LLaDA, or Dream and DiffuCoder exported
without an adapter, such as the embedded base: `lopa-export onnx src/lopa/tiny/base -o out/base`. The base knows little
more than such arithmetic.
"""

import argparse

from lopa import Decoder, Hole

QUESTION = (
    "Question: Anna has 14 cards. Anna buys 5 more cards. Anna gives 4 cards to Ben. How many cards does Anna have now?"
)
FIELDS = ("after buying", "before giving", "answer")
FORM = [
    f"{QUESTION}\nAnswer: First, Anna has 14 cards. Adding 5 gives 14 + 5 =",
    Hole(3),
    ". Taking away 4 gives",
    Hole(3),
    " - 4 = 15. The answer is",
    Hole(3),
    ".",
]


def main(bundle: str) -> None:
    """Print the value of each field."""
    with Decoder.open(bundle) as decoder:
        result = decoder.fill(FORM)
    for field, value in zip(FIELDS, result.holes or (), strict=True):
        print(f"{field}: {value.strip()}")
    print(f"{len(FIELDS)} fields in {result.steps} forwards")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    main(**vars(parser.parse_args()))
