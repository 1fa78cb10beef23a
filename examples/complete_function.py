"""Complete a function in the middle: python examples/complete_function.py BUNDLE [TOKENS]

The model attends to both sides of the hole, so that the new lines use the names of the lines above and below it. This
needs LLaDA, or Dream and DiffuCoder exported without an adapter. The embedded base, which `lopa-export onnx
src/lopa/tiny/base -o out/base` exports, shows how it works but writes broken code.
"""

import argparse

from lopa import Decoder, Hole

BEFORE = '''def solve_count_even(nums):
    """Count the nums that are even."""
    out = 0
    for x in nums:'''
AFTER = "\n    return out\n"


def main(bundle: str, tokens: int) -> None:
    """Print the function and the number of forwards."""
    with Decoder.open(bundle) as decoder:
        # The hole may be longer than the code: an end of text in it ends it earlier.
        result = decoder.fill([BEFORE, Hole(tokens), AFTER])
    print(result.filled_text)  # BEFORE and AFTER are unchanged
    print(f"{result.tokens} tokens in {result.steps} forwards")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("tokens", nargs="?", type=int, default=24)
    main(**vars(parser.parse_args()))
